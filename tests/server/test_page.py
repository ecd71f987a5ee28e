"""The page at "/" in headless Chromium, at two sizes: python3 test_page.py QUERN. With PICTURES=FOLDER in the
environment, pictures of it are left there. Exit status 77 without Chromium."""
import os

from common import Server, main, skip
from chromium import Chromium

if not Chromium.find():
    skip("there is no chromium here")
s = Server("--served-model-name", "tiny")
b = Chromium()
URL = f"http://127.0.0.1:{s.port}/"
SIZES = [("wide", 1280, 800, "light"), ("narrow", 390, 844, "dark")]


def say(text):
    b.run(f"document.querySelector('#say').value = {text!r}; document.querySelector('#form').requestSubmit()")


def picture(name):
    if os.environ.get("PICTURES"):
        b.picture(f"{os.environ['PICTURES']}/{name}.png")


def texts(kind):
    return b.run(f"[...document.querySelectorAll('{kind}')].map((e) => e.textContent)")


def fits():
    """Nothing is wider than the window, and the form is in it."""
    assert b.run("document.documentElement.scrollWidth <= innerWidth"), b.run("document.documentElement.scrollWidth")
    assert b.run("document.querySelector('#go').getBoundingClientRect().bottom <= innerHeight")


def test_talks():
    for name, width, height, scheme in SIZES:
        b.size(width, height, scheme)
        b.call("Page.navigate", url=URL)
        b.until("document.querySelector('#model')?.textContent === 'tiny'")
        picture(f"{name}-empty")
        fits()
        b.run("document.querySelector('#temperature').value = '0'; document.querySelector('#max_tokens').value = '60'")
        say("Tell me a story")
        b.until("document.querySelector('#go').textContent === 'Send' && document.querySelector('.assistant')")
        want = s.good("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a story"}], "temperature": 0,
                                               "max_tokens": 60})["choices"][0]["message"]["content"]
        assert texts(".user") == ["Tell me a story"] and texts(".assistant") == [want], texts(".assistant")
        note = texts(".note")[0]
        assert "first token" in note and "tokens/s" in note and "60 tokens" in note, note
        say("And then?")
        b.until("document.querySelectorAll('.assistant').length === 2 && document.querySelector('#go').textContent === 'Send'")
        picture(f"{name}-talk")
        fits()
        b.run("document.querySelector('#set').click()")
        picture(f"{name}-settings")
        fits()
        b.run("document.querySelector('#close').click(); document.querySelector('#clear').click()")
        assert texts(".turn") == []


def test_stops():
    b.call("Page.navigate", url=URL)
    b.until("document.querySelector('#model')?.textContent === 'tiny'")
    b.run("document.querySelector('#max_tokens').value = '900'; document.querySelector('#temperature').value = '1'")
    for _ in range(20):  # an answer may be over before it is stopped
        say("Tell me a very long story")
        b.until("document.querySelector('#go').textContent === 'Stop' || document.querySelector('.assistant')")
        b.run("document.querySelector('#form').requestSubmit()")
        b.until("document.querySelector('#go').textContent === 'Send'")
        if any("stopped" in n for n in texts(".note")):
            break
    assert any("stopped" in n for n in texts(".note")), texts(".note")
    s.until(s.idle, 3)


def test_says_errors():
    b.run("document.querySelector('#clear').click(); document.querySelector('#max_tokens').value = '99999'")
    say("Hi")
    b.until("document.querySelector('.note.bad')")
    assert "maximum context length" in texts(".note")[-1]


def test_loads_nothing_else():
    urls = {p["request"]["url"] for m, p in b.heard if m == "Network.requestWillBeSent"}
    assert all(u.startswith((URL, "data:", "about:")) for u in urls), urls
    errors = [p for m, p in b.heard if m == "Runtime.exceptionThrown" or
              (m == "Log.entryAdded" and p["entry"]["level"] == "error" and "400" not in p["entry"]["text"])]
    assert errors == [], errors


def test_shows_thoughts():
    with Server("--reasoning-parser", "deepseek_r1") as thinking:
        b.call("Page.navigate", url=f"http://127.0.0.1:{thinking.port}/")
        b.until("document.querySelector('#model')?.textContent")
        b.run("document.querySelector('#max_tokens').value = '20'")
        say("Tell me a story")
        b.until("document.querySelector('#go').textContent === 'Send' && document.querySelector('.thought')")
        assert len(texts(".thought")[0]) > 20 and texts(".assistant") == [], texts(".turn")
    b.call("Page.navigate", url=URL)


def test_end():
    b.close()
    s.check_sound()
    s.end()


try:
    main(globals())
finally:
    if b.process.poll() is None:
        b.close()
