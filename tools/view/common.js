"use strict";
// Shared by the pages: colours, numbers, a canvas with sharp pixels, zoom and pan with mouse, touch
// and keys. No dependencies, no network.
const COLOR = { embed:"#7c8794", qkv:"#2563eb", attention:"#d97706", attention_split:"#d97706",
  attention_merge:"#b45309", linear:"#0d9488", linear_splitk:"#0d9488",
  splitk_sum:"#0f766e", gated_mlp:"#7c3aed", lm_head:"#be185d",
  sample:"#dc2626", empty:"#94a3b8", "empty tasks":"#94a3b8" };
const colorOf = op => COLOR[op] || "#64748b";
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const esc = s => String(s).replace(/[&<>"]/g, c => ({ "&":"&amp;", "<":"&lt;", ">":"&gt;", '"':"&quot;" }[c]));
function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB"]; let u = 0;
  while (n >= 999.5 && u < 4) { n /= 1000; u++; }
  return (u ? n.toPrecision(3) : Math.round(n)) + " " + units[u];
}
const us = t => t >= 1000 ? (t / 1000).toFixed(t >= 1e5 ? 0 : 2) + " ms" : t.toFixed(t < 10 ? 2 : 1) + " µs";
const el = id => document.getElementById(id);

// A canvas of CSS height h that is redrawn at most once per frame.
function surface(canvas, h, draw) {
  const ctx = canvas.getContext("2d"); let asked = false, size = { w:0, h };
  function paint() {
    asked = false;
    const ratio = window.devicePixelRatio || 1;
    size.w = canvas.clientWidth; size.h = h;
    if (canvas.width !== Math.round(size.w * ratio) || canvas.height !== Math.round(h * ratio)) {
      canvas.width = Math.round(size.w * ratio); canvas.height = Math.round(h * ratio);
    }
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, size.w, h);
    draw(ctx, size);
  }
  const redraw = () => { if (!asked) { asked = true; requestAnimationFrame(paint); } };
  canvas.style.height = h + "px";
  new ResizeObserver(redraw).observe(canvas);
  return { redraw, size, setHeight(n) { h = n; canvas.style.height = n + "px"; redraw(); } };
}

// Pointer input: on.pan(dx, dy), on.zoom(factor, x, y), on.hover(x, y) (null: left), on.click(x, y).
function gestures(canvas, on) {
  const down = new Map(); let moved = 0, spread = 0;
  const at = e => { const r = canvas.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
  canvas.addEventListener("pointerdown", e => { canvas.setPointerCapture(e.pointerId); down.set(e.pointerId, at(e)); moved = 0; spread = 0; });
  canvas.addEventListener("pointermove", e => {
    const p = at(e), before = down.get(e.pointerId);
    if (!before) { on.hover && on.hover(p[0], p[1]); return; }
    down.set(e.pointerId, p);
    if (down.size === 1) {
      moved += Math.abs(p[0] - before[0]) + Math.abs(p[1] - before[1]);
      if (moved > 4) on.pan(p[0] - before[0], p[1] - before[1]);
    } else {
      const [a, b] = [...down.values()], d = Math.hypot(a[0] - b[0], a[1] - b[1]);
      if (spread) on.zoom(d / spread, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
      spread = d; moved = 99;
    }
  });
  const up = e => { if (down.delete(e.pointerId) && moved <= 4 && e.type === "pointerup") on.click && on.click(...at(e)); };
  canvas.addEventListener("pointerup", up); canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", () => { if (!down.size) on.hover && on.hover(null); });
  canvas.addEventListener("wheel", e => {
    e.preventDefault();
    if (e.shiftKey) on.pan(-e.deltaY, 0);
    else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) on.pan(-e.deltaX, 0);
    else on.zoom(Math.exp(-e.deltaY * 0.0015), ...at(e));
  }, { passive:false });
  canvas.tabIndex = 0;
  canvas.addEventListener("keydown", e => {
    const w = canvas.clientWidth, h = canvas.clientHeight;
    const step = { ArrowLeft:[w / 8, 0], ArrowRight:[-w / 8, 0], ArrowUp:[0, 40], ArrowDown:[0, -40] }[e.key];
    if (step) on.pan(...step);
    else if (e.key === "+" || e.key === "=") on.zoom(1.4, w / 2, h / 2);
    else if (e.key === "-") on.zoom(1 / 1.4, w / 2, h / 2);
    else return;
    e.preventDefault();
  });
}
function fit(ctx, text, width) {
  if (ctx.measureText(text).width <= width) return text;
  let n = Math.floor(text.length * width / ctx.measureText(text).width);
  return n > 2 ? text.slice(0, n - 1) + "…" : "";
}
