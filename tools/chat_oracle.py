"""What a chat template has to give: jinja2 set up as transformers 5.24 sets it up, and quern.

    from chat_oracle import expected, Quern            needs: jinja2 3.1.6 or later
"""
import ctypes
import datetime
import json
import os
import pathlib
import tempfile

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = None  # a datetime for strftime_now; None: the time


class Generation(jinja2.ext.Extension):
    """{% generation %}: transformers marks what is inside; the text stays."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    """Without names that begin with an underscore."""
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form):
        return (NOW or datetime.datetime.now()).strftime(form)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, strftime_now=strftime_now, namespace=Namespace)
    return env


ENV = environment()
REASONING = ("reasoning_content", "thinking", "reasoning")


def message(m):
    """A message as templates get it."""
    m = {k: v for k, v in m.items() if v is not None}
    reasoning = next((m[k] for k in REASONING if m.get(k) is not None), None)
    return m if reasoning is None else {"thinking": reasoning, **m, "reasoning_content": reasoning}


def expected(template, conversation, tokens=()):
    """The text; raises whatever jinja2 raises."""
    kwargs = {**dict(tokens), **conversation.get("chat_template_kwargs", {})}
    return ENV.from_string(template).render(
        messages=[message(m) for m in conversation["messages"]], tools=conversation.get("tools"),
        documents=conversation.get("documents"),
        add_generation_prompt=conversation.get("add_generation_prompt", False), **kwargs)


class Refused(Exception):
    """code: quern's"""
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


UNSUPPORTED, LIMIT = -6, -8


class Quern:
    """Renders with libquern.so through its C interface."""

    class Error(ctypes.Structure):
        _fields_ = [("code", ctypes.c_int32), ("message", ctypes.c_char * 1000)]

    def __init__(self, library):
        self.c = ctypes.CDLL(str(pathlib.Path(library).resolve()))
        self.folder = tempfile.TemporaryDirectory()

    def open(self, template, tokens=()):
        """A template; close() it."""
        error, handle = self.Error(), ctypes.c_void_p()
        folder = pathlib.Path(self.folder.name)
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")
        (folder / "tokenizer_config.json").write_text(json.dumps(dict(tokens)))
        if self.c.qn_chat_template_open(os.fsencode(folder), None, ctypes.byref(handle), ctypes.byref(error)):
            raise Refused(error.code, error.message.decode())
        return handle

    def close(self, handle):
        self.c.qn_chat_template_close(handle)

    def render(self, handle, conversation):
        error, text, n = self.Error(), ctypes.c_void_p(), ctypes.c_size_t()
        body = json.dumps({"add_generation_prompt": False, **conversation}).encode()
        if self.c.qn_chat_template_render(handle, body, None, ctypes.byref(text), ctypes.byref(n), ctypes.byref(error)):
            raise Refused(error.code, error.message.decode())
        out = ctypes.string_at(text, n.value).decode()
        self.c.qn_free(text)
        return out

    def text(self, template, conversation, tokens=()):
        handle = self.open(template, tokens)
        try:
            return self.render(handle, conversation)
        finally:
            self.close(handle)
