# chat_terminal.sh - a conversation by a person: keys go to a terminal, what is shown is looked at.
. tests/cli/common.bash
python3 -B - "$Q" $TINY <<'PY' || die "see above"
import os, pty, re, select, signal, sys, termios, time
quern, model = sys.argv[1:]

class Chat:
    def __init__(self, *options):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", LC_ALL="C", HOME="/nowhere")
            os.execv(quern, ["quern", "chat", model, "--temperature", "0", *options])
        self.seen, self.status = "", None
        self.wait("Ctrl-D leaves")
        self.prompt()

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]: return False
        try: data = os.read(self.fd, 65536)
        except OSError: data = b""
        self.seen += data.decode("utf-8", "replace")
        return bool(data)

    def wait(self, words, seconds=60):
        end = time.time() + seconds
        while words not in self.seen:
            if time.time() > end or (not self.read(1) and self.ended()):
                sys.exit(f"no '{words}' in:\n{self.seen}")
        at = self.seen.index(words) + len(words)
        before, self.seen = self.seen[:at], self.seen[at:]
        return before

    # libedit shows its prompt before it takes the terminal's keys one by one.
    def prompt(self, seconds=60):
        self.wait("> ")
        end = time.time() + seconds
        while termios.tcgetattr(self.fd)[3] & termios.ICANON:
            if time.time() > end: sys.exit("the prompt reads no keys")
            time.sleep(0.001)

    def keys(self, text):
        os.write(self.fd, text.encode())

    def ended(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid: self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def end(self, status=0):
        limit = time.time() + 20
        while not self.ended() and time.time() < limit: self.read(0.1)
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            sys.exit(f"does not end:\n{self.seen}")
        if self.status != status: sys.exit(f"status {self.status}, want {status}:\n{self.seen}")

def answer(chat):
    shown = chat.wait("tokens/s")
    chat.prompt()
    return shown

# Editing: two letters too many are deleted, a letter that was left out is put in; an arrow brings
# the question back. Each asks the same, after /reset.
chat = Chat("--max-tokens", "6")
chat.keys("Hello!\r")
first = answer(chat)
if "cut after 6 tokens" not in first: sys.exit(f"no note that the answer was cut:\n{first}")
text = re.search(r"\n([^\n]+)\r\nquern: the answer was cut", first).group(1)
for keys in ("Helloxx\x7f\x7f!\r", "ello!\x01H\x05\r", "\x1b[A\x1b[A\r"):
    chat.keys("/reset\r")
    chat.wait("/reset")
    chat.prompt()
    chat.keys(keys)
    shown = answer(chat)
    if text not in shown: sys.exit(f"{keys!r}: another answer than '{text}':\n{shown}")

# Commands; several lines; what is typed is dropped by Ctrl-C; text beyond ASCII.
chat.keys("/help\r")
chat.wait("forgets the conversation")
chat.keys("/rest\r")
chat.wait("unknown command /rest")
chat.keys("not asked\x03")
chat.wait("^C")
chat.keys("one \\\rtwo\r")
chat.wait(". ")
answer(chat)
chat.keys('"""one\r')
chat.wait(". ")
chat.keys('two"""\r')
answer(chat)
chat.keys("Gr\u00fc\u00dfe\r")
chat.wait("Gr\u00fc\u00dfe")
answer(chat)
chat.keys("\x04")
chat.end()

# Ctrl-C stops an answer and the conversation goes on; a context that is full has a way on.
chat = Chat("--ignore-eos", "--max-model-len", "900", "--threads", "1")
chat.keys("Tell me a story.\r")
chat.wait("\r\n")
chat.wait(" ")
chat.keys("\x03")
chat.wait("the answer was stopped")
chat.prompt()
chat.keys("Tell me a story.\r")
chat.wait("the context of 900 positions is full; /reset starts over")
chat.prompt()
chat.keys("Go on.\r")
chat.wait("/reset starts over")
chat.prompt()
chat.keys("/reset\r")
chat.prompt()
chat.keys("/exit\r")
chat.end()
PY
exit 0
