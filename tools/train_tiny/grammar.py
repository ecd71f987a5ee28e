"""The story grammar: picks who, where and what, introduces them, and hands over to a plot.

story(rng) returns one story as text. Run this file to print some:
    python3 grammar.py [seed] [count]
"""
import random
import re
import sys
import zlib

from engine import Character, Thing, Writer
from plots import PLOTS
from world import (ANIMALS, BOYS, FANTASY_HOMES, FOODS, GIRLS, HE_ANIMALS, KID_HOMES, MENTORS,
                   NEIGHBOURS, OBJECTS, OBJECT_LOVE, PEOPLE, PLACES, SEX, SHE_ANIMALS, TRAITS,
                   TRAIT_SHOWS, WEATHER, made_up)

ON = ("farm", "island", "plain", "rock", "mountain", "beach", "hill", "wall")


def home_at(home):
    """The home with the preposition that fits it ("on a farm", "in a den")."""
    last = re.split(r" (?:near|of|on|in|by|under) ", home)[0].split()[-1]
    return ("on " if last in ON else "in ") + home


def place(rng, name):
    preposition, spots, senses = PLACES[name]
    spot, wrong = rng.sample(spots, 2)
    return Thing(name, at=f"{preposition} the {name}", the="the " + name, spot=spot, wrong=wrong,
                 spotc=spot[0].upper() + spot[1:], sense=rng.choice(senses),
                 inside=f"to the {name}")


class Tale(Writer):
    """One story in the making. `short` tells it with fewer side sentences."""

    def __init__(self, rng, short=False, kind=None, name=None):
        super().__init__(rng)
        self.short = short
        self.used = set()
        if kind is None:
            kind = rng.choice(["girl", "boy"]) if rng.random() < .4 else rng.choice(sorted(ANIMALS))
        if name is None and rng.random() < .06:
            name = made_up(rng).capitalize()
        self.people = kind in ("girl", "boy") or kind in PEOPLE
        self.bound["H"] = self.character(kind, name)
        self.bound["H"].trait = self.preferred(TRAITS, 1)
        self.places()
        noun, adjectives = self.preferred(OBJECTS, 3)
        self.bound["O"] = Thing(f"{rng.choice(adjectives)} {noun}", short=noun,
                                love=OBJECT_LOVE[noun])
        food, other = rng.sample(FOODS, 2)
        self.bound["D"] = Thing(food, short=food.split(" of ")[-1] if " of " in food else food,
                                gift="a " + other)
        if " of " in food:
            self.bound["D"].attrs["short"] = food
        name, mentor, sex = rng.choice(MENTORS)
        self.bound["M"] = Character(name, mentor, sex)
        self.weather = None

    def preferred(self, items, salt):
        """Half of the time a choice that depends on the hero's name alone, else any.

        So the name, drawn early in a story, colours what follows, and a model that always takes
        the likeliest word still tells different stories about different heroes.
        """
        items = list(items)
        name = self.bound["H"].name
        if self.rng.random() < .5:
            return items[zlib.crc32(f"{salt} {name}".encode()) % len(items)]
        return self.rng.choice(items)

    def character(self, kind, name=None, sex=None):
        rng = self.rng
        if kind in ("girl", "boy"):
            sex = "f" if kind == "girl" else "m"
            names, homes = (GIRLS if sex == "f" else BOYS), KID_HOMES
        else:
            if name in GIRLS + SHE_ANIMALS:
                sex = "f"
            elif name in BOYS + HE_ANIMALS:
                sex = "m"
            sex = SEX.get(kind) or sex or rng.choice("fm")
            homes = ANIMALS.get(kind, FANTASY_HOMES)
            if kind in PEOPLE:
                names = GIRLS if sex == "f" else BOYS
            else:
                names = SHE_ANIMALS if sex == "f" else HE_ANIMALS
        if name is None:
            name = rng.choice([n for n in names if n not in self.used])
        self.used.add(name)
        self.used.add(kind)
        return Character(name, kind, sex, home_at(rng.choice(homes)), rng.choice(TRAITS),
                         rng.choice(["little", "little", "young", "small"]))

    def places(self):
        first, second = self.rng.sample(sorted(PLACES), 2)
        self.bound["P"], self.bound["Q"] = place(self.rng, first), place(self.rng, second)

    # ---- what plots call

    def say(self, *templates, join=False):
        """Like Writer.say; join=True continues the day opening ("One sunny morning, ...")."""
        if join and self.parts and self.parts[-1].endswith(","):
            lead = self.parts.pop()
            text = self.expand(self.rng.choice(templates))
            first = text.split()[0].strip(",.'")
            keep = any(first in str(c.name).split() for c in self.bound.values()) and first[0].isupper()
            if not keep or first in ("The", "A"):
                text = text[0].lower() + text[1:]
            self.parts.append(lead + " " + text)
            return
        super().say(*templates)

    def maybe(self, chance, *templates):
        super().maybe(chance * (.4 if self.short else 1), *templates)

    def flag(self, word):
        return any(word in part for part in self.parts)

    def thing(self, key, name):
        self.bound[key] = Thing(name)

    def owns(self):
        self.say("{H} had a {O}. {H.he} {O.love}.",
                 "The thing {H} loved most was a {O}. {H.he} {O.love}.",
                 "For {H.his} birthday {H} had got a {O}. {H.he} {O.love}.")

    def friend(self):
        """Bind F, the best friend, of another kind than the hero, and introduce them."""
        hero = self.bound["H"]
        if self.people and self.rng.random() < .7:
            kind = "boy" if hero.sex == "f" else "girl"
        elif self.people:
            kind = self.rng.choice(["cat", "dog"])
        else:
            kind = self.rng.choice([n for n in NEIGHBOURS if n not in self.used])
        other_sex = "m" if hero.sex == "f" else "f"
        friend = self.character(kind, sex=other_sex if self.rng.random() < .8 else hero.sex)
        self.bound["F"] = friend
        self.say("{H.his} best friend was {F.a} named {F}.",
                 "{H} had a good friend, {F.a} named {F}.",
                 "{H} and {F}, {F.a}, were best friends.",
                 "Next door lived {F.a} named {F}, and the two were friends.")

    def other(self, proud=False, shy=False, grumpy=False):
        """Bind N, a third character; the plot introduces them."""
        hero = self.bound["H"]
        if self.people and (shy or self.rng.random() < .3) and "F" not in self.bound:
            kind = "boy" if hero.sex == "f" else "girl"
        else:
            kind = self.rng.choice([n for n in NEIGHBOURS if n not in self.used])
        other_sex = "m" if hero.sex == "f" else "f"
        self.bound["N"] = self.character(kind, sex=other_sex if self.rng.random() < .8 else None)
        if proud:
            self.bound["N"].adj = self.rng.choice(["proud", "fast", "young"])
        if shy:
            self.bound["N"].adj = self.rng.choice(["shy", "quiet", "little"])
        if grumpy:
            self.bound["N"].adj = self.rng.choice(["grumpy", "old", "big"])

    def plain_day(self, *kinds):
        """The opening of the day, to be continued by say(..., join=True)."""
        self.weather = self.rng.choice(kinds or ("sunny", "spring", "autumn", "windy", "sunny"))
        self.parts.append(self.rng.choice(WEATHER[self.weather][0]))

    def day(self):
        """The opening of the day, with a look at the weather."""
        self.weather = self.rng.choice(["sunny", "windy", "spring", "autumn", "sunny"])
        opening, notes = WEATHER[self.weather]
        if self.rng.random() < (.3 if self.short else .6):
            self.parts.append(self.rng.choice([
                "It was a fine day.", "It was the first day of the holidays.", "It was Sunday."]))
            self.parts.append(self.rng.choice(notes))
        else:
            self.parts.append(self.rng.choice(opening))
            self.say("the world looked like new.", "everyone was up early.",
                     "{H} woke up before the others.", join=True)

    def sense(self, key="P"):
        if self.rng.random() < (.25 if self.short else .6):
            self.parts.append(self.bound[key].attrs["sense"])

    # ---- the introduction

    def introduce(self):
        hero = self.bound["H"]
        self.bound["T"] = Thing(hero.trait)
        young = self.rng.choice(["little", "little", "young"])
        hero.adj = self.rng.choice([hero.trait, hero.trait + " " + young, hero.adj])
        self.say(
            "Once upon a time there was {H.a} named {H}. {H.he} lived {H.home}.",
            "Once upon a time, {H.a} named {H} lived {H.home}.",
            "Once upon a time, {H.home}, there lived {H.a}. {H.his} name was {H}.",
            "Once there was {H.a} named {H}, who lived {H.home}.",
            "{H} was {H.a}. {H.he} lived {H.home}.",
            "Long ago, {H.a} named {H} lived {H.home}.",
            "There once was {H.a} who lived {H.home}. {H.his} name was {H}.",
            "Far away, {H.home}, lived {H.a} named {H}.",
            "This is the story of {H}, {H.a} who lived {H.home}.",
        )
        if self.rng.random() < (.3 if self.short else .6):
            show = self.rng.choice(TRAIT_SHOWS[hero.trait])
            self.say("{H} was {T}, and " + show + ".",
                     "Everyone knew how {T} {H} was. " + show + ".",
                     show + ".")


def story(rng, short=False, kind=None, name=None, plot=None):
    """One story as text (one paragraph). The bindings can be asked for; see chat.py."""
    tale = Tale(rng, short, kind, name)
    plot = plot or tale.preferred(sorted(PLOTS), 2)
    if plot == "afraid":
        tale.bound["H"].trait = rng.choice([t for t in TRAITS if t != "brave"])
    tale.introduce()
    PLOTS[plot](tale)
    if rng.random() < .12:
        tale.parts.append("The end.")
    return tale.text()


def paragraphs(rng, text):
    """The same story in two to four paragraphs (some documents look like that)."""
    sentences = text.split(". ")
    if rng.random() < .5 or len(sentences) < 9:
        return text
    step = rng.choice([4, 5, 6])
    groups = [". ".join(sentences[i:i + step]) for i in range(0, len(sentences), step)]
    if len(groups) > 1 and groups[-1].count(". ") < 1:
        tail = groups.pop()
        groups[-1] += ". " + tail
    return ".\n\n".join(groups)


if __name__ == "__main__":
    RNG = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 5):
        print(paragraphs(RNG, story(RNG)), "\n\n-----\n")
