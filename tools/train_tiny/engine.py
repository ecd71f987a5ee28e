"""A small text-template engine: alternatives, slots, dialogue, articles and capitals.

Template language
    [a|b|c]        one of the alternatives (may nest, may be empty)
    {K}            the name of the thing bound to K
    {K.attr}       an attribute of it (pronoun forms of a character, spot of a place, ...)
    <K words>      K says the words; the engine chooses where "said K" goes
    <- words>      the words in quotes alone (the sentence before shows who speaks)
Everything random comes from the random.Random handed in, so that a seed fixes the text.
"""
import re

ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")
SLOT = re.compile(r"\{(\w+)(?:\.(\w+))?\}")
SPEECH = re.compile(r"<(\w+|-) ([^<>]*)>")
ARTICLE = re.compile(r"\b([Aa]) (?=([A-Za-z]+))")
SPOKEN = "\x01"  # stands after a speech: what follows begins a new sentence
AFTER_SPEECH = re.compile(SPOKEN + r"\s+(\w)")
SENTENCE = re.compile(r"([.!?] |\.\" )([a-z])")
FIRST_SENTENCE = re.compile(r"(.*?[.!?])\s+(.+)", re.S)

PRONOUNS = {
    "f": {"he": "she", "him": "her", "his": "her", "hers": "hers", "self": "herself"},
    "m": {"he": "he", "him": "him", "his": "his", "hers": "his", "self": "himself"},
}


class Character:
    """Somebody in a story. `name` is how the text calls them, `kind` what they are."""

    def __init__(self, name, kind, sex, home="", trait="", adj="little"):
        self.name, self.kind, self.sex = name, kind, sex
        self.home, self.trait, self.adj = home, trait, adj

    def form(self, attr):
        if attr is None:
            return self.name
        low = attr.lower()
        if low in PRONOUNS[self.sex]:
            text = PRONOUNS[self.sex][low]
        elif low == "the":
            text = "the " + self.kind
        elif low == "a":
            text = f"a {self.adj} {self.kind}"
        else:
            text = getattr(self, low)
        return text[0].upper() + text[1:] if attr[0].isupper() else text


class Thing:
    """An object or a place: `name` plus any further text attributes."""

    def __init__(self, name, **attrs):
        self.name = name
        self.attrs = attrs

    def form(self, attr):
        return self.name if attr is None else self.attrs[attr]


def articles(text):
    """Turn "a" into "an" before a vowel sound."""

    def fix(match):
        word = match.group(2).lower()
        vowel = word[0] in "aeiou" and not word.startswith(("uni", "use", "one", "once", "eu"))
        vowel = vowel or word.startswith(("hour", "honest"))
        return match.group(1) + ("n " if vowel else " ")

    return ARTICLE.sub(fix, text)


class Writer:
    """Expands templates against a set of bindings and collects the sentences."""

    def __init__(self, rng):
        self.rng = rng
        self.bound = {}
        self.parts = []

    def alternatives(self, text):
        while True:
            expanded = ALTERNATIVES.sub(lambda m: self.rng.choice(m.group(1).split("|")), text)
            if expanded == text:
                return text
            text = expanded

    def slots(self, text):
        return SLOT.sub(lambda m: self.bound[m.group(1)].form(m.group(2)), text)

    def speech(self, match):
        key, words = match.group(1), match.group(2).strip()
        words = self.slots(words)
        words = words[0].upper() + words[1:]
        if key == "-":
            return f'"{words}"'
        who = self.bound[key]
        end = words[-1]
        first = FIRST_SENTENCE.match(words)
        lead = first.group(1) if first else words
        verb = {"?": ["asked", "asked", "said"], "!": ["cried", "said", "called"]}.get(
            lead[-1], ["said"])
        verb = self.rng.choice(verb)
        name = who.name
        if first and self.rng.random() < 0.6:
            comma = lead[:-1] + "," if lead[-1] == "." else lead
            return f'"{comma}" {verb} {name}. "{first.group(2)}"'
        if self.rng.random() < 0.3:
            verb = "asked" if end == "?" else "said"
            return f'{name[0].upper() + name[1:]} {verb}, "{words}"'
        if first:
            return f'{name[0].upper() + name[1:]} said, "{words}"'
        comma = words[:-1] + "," if end == "." else words
        return f'"{comma}" {verb} {name}.'

    def expand(self, template):
        text = self.alternatives(template)
        text = SPEECH.sub(lambda m: self.speech(m) + SPOKEN, text)
        text = AFTER_SPEECH.sub(lambda m: " " + m.group(1).upper(), self.slots(text))
        text = text.replace(SPOKEN, "")
        text = articles(" ".join(text.split()))
        text = SENTENCE.sub(lambda m: m.group(1) + m.group(2).upper(), text)
        return text[0].upper() + text[1:] if text else text

    def say(self, *templates):
        """Append one of the templates, expanded."""
        text = self.expand(self.rng.choice(templates))
        if text:
            self.parts.append(text)

    def maybe(self, chance, *templates):
        if self.rng.random() < chance:
            self.say(*templates)

    def text(self):
        return " ".join(self.parts)
