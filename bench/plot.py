#!/usr/bin/env python3
"""Draws ms per token against the floor, per model, from the recorded results: plain SVG text.

    bench/plot.py > decode.svg    prints it
    bench/plot.py --write         makes docs/pictures/decode.svg
    bench/plot.py --check         exit status 1 if that file is another one

For each GPU and model on record in bench/results: quern's newest run at batch 1 and the newest figures of
other systems, from a record of bench/compare.py or else from peers-*.json. A bar is as long as the step
takes in multiples of the floor of its own run (bytes of a step over the read ceiling measured with it); a
peer without a floor of its own has that of quern's run on the same kind of card.
"""
import html
import sys

import records

PICTURE = records.ROOT / "docs" / "pictures" / "decode.svg"

# Geometry in pixels.
WIDTH, MARGIN, NAMES, VALUES = 760, 20, 118, 128
BAR, GAP, HEADING = 16, 6, 30
TOP, BOTTOM = 64, 58
PLOT = WIDTH - 2 * MARGIN - NAMES - VALUES  # of the longest bar
LEFT = MARGIN + NAMES

STYLE = """
  .paper { fill: #ffffff } text { fill: #1f2328; font: 13px system-ui, sans-serif;
    stroke: #ffffff; stroke-width: 4px; stroke-linejoin: round; paint-order: stroke } /* over the grid */
  .title { font-size: 16px; font-weight: 600 } .model { font-weight: 600 } .small { fill: #59636e; font-size: 12px }
  .floor { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 4 3 } .floor-text { fill: #cf222e; font-size: 12px }
  .grid { stroke: #d1d9e0 } .quern { fill: #0969da } .other { fill: #9aa4b0 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } text { fill: #f0f6fc; stroke: #0d1117 } .small { fill: #9198a1 }
    .floor { stroke: #ff7b72 } .floor-text { fill: #ff7b72 }
    .grid { stroke: #3d444d } .quern { fill: #4493f8 } .other { fill: #656c76 }
  }
"""


def figures(folder=None):
    """{device: {model: {system: {"ms", "floor_ms", "date", "setting"}}}} and the weights of the models; CUDA only."""
    found, weights = {}, {}
    for device, model, date, _, run in records.quern_runs(folder):
        if run["backend"] != "cuda":
            continue
        for r in run["results"]:
            if r["batch_size"] == 1 and r["read_floor_tb_s"] > 0:
                floor = r["bytes_per_step"] / r["read_floor_tb_s"] / 1e9
                found.setdefault(device, {}).setdefault(model, {})["quern"] = {
                    "ms": r["ms_per_token"]["median"], "floor_ms": floor, "date": date[:10],
                    "setting": f"{run['dtype']}, prompt of {run['input_len']}"}
                weights[model] = run["weight_bytes"]
    for _, record in records.read_all(folder):
        for model, system, entry in records.systems(record):
            floor = record["models"][model]["floor"].get("ms")
            # A record of the CPU has a device that no quern run on a GPU has.
            if system != "quern" and entry["status"] == "ok" and floor and model in found.get(record["device"], {}):
                found[record["device"]][model][system] = {"ms": entry["ms_per_token"], "floor_ms": floor,
                                                          "date": record["date"][:10],
                                                          "setting": f"{record['dtype']}, prompt of "
                                                                     f"{record['input_len']}"}
    _, record = records.peers(folder)
    for model, systems in record["peers"].items():
        one = found.get(record["device"], {}).get(model)
        for system, by_batch in systems.items():
            if one and system not in one and "1" in by_batch:
                one[system] = {"ms": by_batch["1"], "floor_ms": one["quern"]["floor_ms"], "date": record["date"][:10],
                               "setting": f"{record['dtype']}, prompt of {record['input_len']}"}
    return found, weights


def text(x, y, words, css="", anchor="start"):
    css = f' class="{css}"' if css else ""
    end = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{css}{end}>{html.escape(words)}</text>'


def ticks(most):
    """Multiples of the floor to draw lines at: 2, 3 ... or every second one, or every fifth."""
    step = 1 if most <= 6 else 2 if most <= 12 else 5
    return [t for t in range(2, int(most) + 1) if step == 1 or t % step == 0]


def draw_model(model, systems, y, scale):
    """The lines of one model, and the y below it."""
    quern = systems["quern"]
    lines = [text(MARGIN, y + 16, model, "model"),
             text(WIDTH - MARGIN, y + 16, f"floor {quern['floor_ms']:.2f} ms", "small", "end")]
    y += HEADING - 4
    for name, one in sorted(systems.items(), key=lambda s: s[1]["ms"] / s[1]["floor_ms"]):
        length = scale * one["ms"] / one["floor_ms"]
        lines += [text(LEFT - 8, y + BAR - 3, name, anchor="end"),
                  f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2" '
                  f'class="{"quern" if name == "quern" else "other"}"/>',
                  text(LEFT + length + 7, y + BAR - 3,
                       f"{one['ms']:.2f} ms, {100 * one['floor_ms'] / one['ms']:.0f} %")]
        y += BAR + GAP
    return lines, y + 6


def draw(found, weights):
    drawn = [s for models in found.values() for systems in models.values() for s in systems.values()]
    most = max([s["ms"] / s["floor_ms"] for s in drawn], default=1)
    scale = PLOT / max(most, 1)
    body, y = [], TOP
    for device, models in sorted(found.items()):
        body.append(text(MARGIN, y + 12, device, "small"))
        y += 20
        for model, systems in sorted(models.items(), key=lambda m: -weights[m[0]]):
            lines, y = draw_model(model, systems, y, scale)
            body += lines
    grid = [f'<line x1="{LEFT + t * scale:.1f}" y1="{TOP - 4}" x2="{LEFT + t * scale:.1f}" y2="{y}" class="grid"/>'
            for t in ticks(most)]
    labels = [text(LEFT + t * scale, TOP - 10, f"{t}x", "small", "middle") for t in ticks(most)]
    floor = [f'<line x1="{LEFT + scale:.1f}" y1="{TOP - 4}" x2="{LEFT + scale:.1f}" y2="{y}" class="floor"/>',
             text(LEFT + scale, TOP - 10, "floor", "floor-text", "middle")]
    dates = sorted({s["date"] for s in drawn})
    when = " to ".join(sorted({dates[0], dates[-1]})) if dates else "nothing"
    settings = " and ".join(sorted({s["setting"] for s in drawn}))
    notes = [text(MARGIN, y + 22, f"Batch 1, {settings}, random weights. Recorded {when}.", "small"),
             text(MARGIN, y + 38, "A bar is a step's time over the floor of its own run: bytes of weights and KV cache "
                  "over the read ceiling.", "small")]
    height = y + BOTTOM
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
            'role="img" aria-labelledby="t">', '<title id="t">Milliseconds per token against the memory floor</title>',
            f"<style>{STYLE}</style>", f'<rect width="{WIDTH}" height="{height}" rx="6" class="paper"/>',
            text(MARGIN, 28, "Milliseconds per token, and percent of the memory floor", "title")]
    return "\n".join(head + grid + labels + body + floor + notes + ["</svg>"]) + "\n"


def main():
    if sys.argv[1:] not in ([], ["--write"], ["--check"]):
        print(__doc__.strip())
        return 0 if sys.argv[1:] in (["--help"], ["-h"]) else 2
    svg = draw(*figures())
    if not sys.argv[1:]:
        sys.stdout.write(svg)
    elif sys.argv[1] == "--write":
        PICTURE.write_text(svg, encoding="utf-8")
    elif not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != svg:
        print(f"{PICTURE.relative_to(records.ROOT)} is not what bench/results says; bench/plot.py --write makes it so")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
