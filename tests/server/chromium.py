"""Headless Chromium, driven over its pipe: a page, its scripts, its pictures."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time


class Chromium:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()

        def pipes():
            os.dup2(to_read, 3)
            os.dup2(from_write, 4)
        # Pipes made just now may have the numbers 3 and 4 themselves.
        self.keep = [os.dup(f) for f in (to_read, from_write)]
        to_read, from_write = (os.dup(f) for f in self.keep)
        for f in (to_read, from_write):
            os.set_inheritable(f, True)
        self.process = subprocess.Popen(
            [self.find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-background-networking", f"--user-data-dir={self.folder}",
             "--remote-debugging-pipe", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.to, self.out, self.n, self.buffer, self.session = to_write, from_read, 0, b"", None
        self.heard = []  # console messages and exceptions
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    @staticmethod
    def find():
        return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

    def message(self):
        while b"\0" not in self.buffer:
            more = os.read(self.out, 1 << 16)
            assert more, "Chromium ended"
            self.buffer += more
        one, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **params):
        self.n += 1
        asked = {"id": self.n, "method": method, "params": params}
        if self.session:
            asked["sessionId"] = self.session
        os.write(self.to, json.dumps(asked).encode() + b"\0")
        while True:
            m = self.message()
            if m.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Network.requestWillBeSent"):
                self.heard.append((m["method"], m["params"]))
            if m.get("id") == self.n:
                assert "error" not in m, m
                return m["result"]

    def run(self, script):
        r = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in r, r
        return r["result"].get("value")

    def until(self, script, seconds=30):
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < end, script
            time.sleep(0.05)

    def size(self, width, height, scheme="light"):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self):
        self.process.kill()
        self.process.wait()
        for f in (self.to, self.out, *self.keep):
            os.close(f)
        shutil.rmtree(self.folder, ignore_errors=True)
