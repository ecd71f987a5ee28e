"""Conversations: questions and answers about small facts, stories on request, several turns.

conversation(rng) returns a list of (role, text). Run this file to print some:
    python3 chat.py [seed] [count]
"""
import random
import sys

import facts
from engine import articles
from grammar import story
from world import ANIMALS, BOYS, GIRLS, SEX, made_up

ONE_WORD = "Answer in one word."
SYSTEMS = ["You are a helpful assistant.", "You are Quern's tiny model.",
           "You are a friendly assistant.", "You are a storyteller.",
           "You are a helpful assistant. Keep your answers short."]
THEMES = {  # words of a request: plot
    "sharing": "sharing", "being brave": "afraid", "courage": "afraid", "honesty": "honesty",
    "telling the truth": "honesty", "a race": "race", "a storm": "storm", "a lost toy": "lost_object",
    "a gift": "gift", "a birthday": "gift", "a new friend": "new_friend", "a seed": "seed",
    "patience": "seed", "a treasure": "treasure", "a quarrel": "quarrel", "a star": "star",
    "a strange noise": "mystery", "working together": "together", "learning something new": "skill",
    "not giving up": "skill", "getting lost": "lost_way", "kindness": "errand",
    "a grumpy neighbour": "grumpy", "helping somebody": "stuck", "friendship": "quarrel",
}


def upper(text):
    return text[0].upper() + text[1:]


def any_article(word):
    return articles("a " + word)


def join(words):
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


# Each of these returns (question, answer, short answer or None, follow-up question or None). A
# follow-up is what one may ask after another question of the same kind ("And a cow?").


def colour(rng):
    thing, shade = rng.choice(sorted(facts.COLOURS.items()))
    word = rng.choice(["colour", "color"])
    verb = "is"
    question = rng.choice([f"What {word} {verb} {thing}?", f"Which {word} {verb} {thing}?",
                           f"Tell me the {word} of {thing}.", f"What is the {word} of {thing}?",
                           f"Do you know the {word} of {thing}?"])
    if " " not in thing and rng.random() < .3:
        question = question.replace(thing, "the " + thing)
    return question, f"{upper(thing)} is {shade}.", upper(shade), f"And {thing}?"


def sound(rng):
    animal, (verb, noise) = rng.choice(sorted(facts.SOUNDS.items()))
    a = any_article(animal)
    question = rng.choice([f"What sound does {a} make?", f"What does {a} say?",
                           f"Which sound does {a} make?", f"How does {a} sound?"])
    answer = rng.choice([f"{upper(a)} {verb}. It says \"{noise}\".", f"{upper(a)} says \"{noise}\"."])
    return question, answer, upper(noise), f"And {a}?"


def home(rng):
    animal, place = rng.choice(sorted(facts.HOMES.items()))
    a = any_article(animal)
    question = rng.choice([f"Where does {a} live?", f"What is the home of {a}?",
                           f"Where do you find {a}?"])
    return question, f"{upper(a)} lives in {place}.", None, f"And where does {a} live?"


def baby(rng):
    animal, young = rng.choice(sorted(facts.BABIES.items()))
    a = any_article(animal)
    question = rng.choice([f"What is a baby {animal} called?", f"What do you call a baby {animal}?",
                           f"What is the name for the young of {a}?"])
    return question, f"A baby {animal} is called {any_article(young)}.", upper(young), \
        f"And a baby {animal}?"


def eats(rng):
    animal, food = rng.choice(sorted(facts.EATS.items()))
    a = any_article(animal)
    question = rng.choice([f"What does {a} eat?", f"What is the food of {a}?",
                           f"What does {a} like to eat?"])
    return question, f"{upper(a)} eats {food}.", None, f"And what does {a} eat?"


def legs(rng):
    animal, count = rng.choice(sorted(facts.LEGS.items()))
    a = any_article(animal)
    number = "no" if count == 0 else facts.NUMBERS[count]
    question = rng.choice([f"How many legs does {a} have?", f"How many legs has {a}?"])
    return question, f"{upper(a)} has {number} legs.", upper(facts.NUMBERS[count]), f"And {a}?"


def opposite(rng):
    one, two = rng.choice(facts.OPPOSITES)
    if rng.random() < .5 and two not in ("short", "light", "old"):
        one, two = two, one
    question = rng.choice([f"What is the opposite of {one}?", f"Tell me the opposite of {one}.",
                           f"Opposite of {one}?", f"What's the opposite of {one}?",
                           f"Which word is the opposite of {one}?"])
    answer = rng.choice([f"The opposite of {one} is {two}.", f"The opposite of {one} is {two}.",
                         f"It is {two}."])
    follow = rng.choice([f"And the opposite of {one}?", f"And {one}?"])
    return question, answer, upper(two), follow


def arithmetic(rng):
    sign = rng.choice(["plus", "plus", "minus", "times"])
    if sign == "plus":
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        result = a + b
    elif sign == "minus":
        a = rng.randint(0, 20)
        b = rng.randint(0, a)
        result = a - b
    else:
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        result = a * b
    symbol = {"plus": "+", "minus": "-", "times": "x"}[sign]
    if rng.random() < .25 and max(a, b, result) <= 20:
        words = f"{facts.NUMBERS[a]} {sign} {facts.NUMBERS[b]}"
        return (rng.choice([f"What is {words}?", f"How much is {words}?"]),
                upper(f"{words} is {facts.NUMBERS[result]}."), upper(facts.NUMBERS[result]), None)
    question = rng.choice([f"What is {a} {sign} {b}?", f"What is {a} {symbol} {b}?",
                           f"How much is {a} {sign} {b}?", f"{a} {symbol} {b} = ?",
                           f"Calculate {a} {symbol} {b}.", f"What's {a} {symbol} {b}?"])
    return question, f"{a} {sign} {b} is {result}.", str(result), f"And {a} {sign} {b}?"


def word_problem(rng):
    thing = rng.choice(["apples", "marbles", "books", "cookies", "shells", "pears", "coins"])
    name = rng.choice(GIRLS + BOYS)
    a = rng.randint(1, 10)
    if rng.random() < .5:
        b = rng.randint(1, 10)
        got = f"{b} more"
        return (f"{name} has {a} {thing} and gets {got}. How many {thing} does {name} have now?",
                f"{a} plus {b} is {a + b}. {name} has {a + b} {thing} now.", str(a + b), None)
    a = rng.randint(3, 15)
    b = rng.randint(1, a - 1)
    left = a - b
    noun = thing if left != 1 else thing[:-1]
    return (f"{name} has {a} {thing} and gives away {b}. How many {thing} are left?",
            f"{a} minus {b} is {left}. {left} {noun} {'is' if left == 1 else 'are'} left.",
            str(left), None)


def counting(rng):
    kind = rng.randrange(5)
    if kind == 0:
        end = rng.randint(3, 12)
        if rng.random() < .4:
            word = facts.NUMBERS[end]
            return (rng.choice([f"Count to {word}.", f"Count from one to {word}.",
                                f"Please count to {word}.", f"Can you count to {word}?"]),
                    ", ".join(str(i) for i in range(1, end + 1)) + ".", None, None)
        question = rng.choice([f"Count to {end}.", f"Count from 1 to {end}.",
                               f"Can you count to {end}?"])
        return question, ", ".join(str(i) for i in range(1, end + 1)) + ".", None, None
    if kind == 1:
        start = rng.randint(3, 10)
        return (rng.choice([f"Count down from {start}.", f"Count backwards from {start}."]),
                ", ".join(str(i) for i in range(start, 0, -1)) + ".", None, None)
    if kind == 2:
        n = rng.randint(1, 30)
        return (rng.choice([f"What number comes after {n}?", f"Which number follows {n}?"]),
                f"After {n} comes {n + 1}.", str(n + 1), f"And after {n}?")
    if kind == 3:
        n = rng.randint(1, 30)
        return (rng.choice([f"What number comes before {n}?", f"Which number is before {n}?"]),
                f"Before {n} comes {n - 1}.", str(n - 1), f"And before {n}?")
    a, b = rng.sample(range(1, 31), 2)
    if rng.random() < .5:
        return (f"Which is bigger, {a} or {b}?", f"{max(a, b)} is bigger than {min(a, b)}.",
                str(max(a, b)), f"And {a} or {b}?")
    return (f"Which is smaller, {a} or {b}?", f"{min(a, b)} is smaller than {max(a, b)}.",
            str(min(a, b)), f"And {a} or {b}?")


def calendar(rng):
    kind = rng.randrange(8)
    names = facts.DAYS if kind < 4 or kind == 6 else facts.MONTHS
    word = "day" if names is facts.DAYS else "month"
    i = rng.randrange(len(names))
    if kind in (0, 4):
        nxt = names[(i + 1) % len(names)]
        return (rng.choice([f"What {word} comes after {names[i]}?", f"Which {word} follows {names[i]}?"]),
                f"After {names[i]} comes {nxt}.", nxt, f"And after {names[i]}?")
    if kind in (1, 5):
        prev = names[i - 1]
        return (rng.choice([f"What {word} comes before {names[i]}?",
                            f"Which {word} is before {names[i]}?"]),
                f"Before {names[i]} comes {prev}.", prev, f"And before {names[i]}?")
    if kind == 2:
        return (rng.choice(["Name the days of the week.", "What are the days of the week?"]),
                f"The days of the week are {join(names)}.", None, None)
    if kind == 3:
        return (f"If today is {names[i]}, what day is tomorrow?",
                f"If today is {names[i]}, tomorrow is {names[(i + 1) % 7]}.", names[(i + 1) % 7], None)
    if kind == 6:
        return rng.choice([
            ("How many days are in a week?", "A week has seven days.", "Seven", None),
            ("How many months are in a year?", "A year has twelve months.", "Twelve", None),
            ("How many hours are in a day?", "A day has twenty-four hours.", "Twenty-four", None),
            ("How many seasons are there?", "There are four seasons.", "Four", None)])
    j = rng.randrange(4)
    season, nxt = facts.SEASONS[j], facts.SEASONS[(j + 1) % 4]
    return rng.choice([
        (f"Which season comes after {season}?", f"After {season} comes {nxt}.", upper(nxt), None),
        ("What are the four seasons?", f"The four seasons are {join(facts.SEASONS)}.", None, None),
        ("Name the months of the year.", f"The months are {join(facts.MONTHS)}.", None, None),
        ("Which season is the coldest?", "Winter is the coldest season.", "Winter", None),
        ("Which season is the warmest?", "Summer is the warmest season.", "Summer", None)])


def name_some(rng):
    what, items = rng.choice(sorted(facts.LISTS.items()))
    count = rng.randint(2, min(5, len(items) - 1))
    number = facts.NUMBERS[count]
    chosen = rng.sample(items, count)
    if what == "colours":
        what = rng.choice(["colours", "colors"])
    question = rng.choice([f"Name {number} {what}.", f"Can you name {number} {what}?",
                           f"Tell me {number} {what}.", f"List {number} {what}.",
                           f"Give me {number} {what}."])
    answer = upper(join(chosen)) + "."
    if rng.random() < .3:
        answer = upper(f"{number} {what} are {join(chosen)}.")
    return question, answer, None, f"Now name {number} {what}."


def kind_of(rng):
    thing, kind = rng.choice(sorted(facts.KINDS.items()))
    other = rng.choice([k for k in sorted(set(facts.KINDS.values())) if k != kind])
    pair = [kind, other]
    rng.shuffle(pair)
    if rng.random() < .5:
        return (f"Is {thing} {pair[0]} or {pair[1]}?", f"{upper(thing)} is {kind}.",
                None, None)
    if rng.random() < .5:
        return f"Is {thing} {kind}?", f"Yes, {thing} is {kind}.", "Yes", None
    return f"Is {thing} {other}?", f"No, {thing} is {kind}.", "No", None


def meaning(rng):
    thing, text = rng.choice(sorted(facts.MEANINGS.items()))
    return rng.choice([f"What is {thing}?", f"Tell me what {thing} is.",
                       f"Can you explain what {thing} is?", f"What does {thing} mean?"
                       if not thing.startswith("the ") else f"What is {thing}?"]), text, None, \
        f"And what is {thing}?"


def use(rng):
    thing, purpose = rng.choice(sorted(facts.USES.items()))
    plural = thing == "scissors"
    question = rng.choice([f"What do you use {thing} for?", f"What {'are' if plural else 'is'} {thing} for?"])
    return question, f"You use {thing} {purpose}.", None, f"And {thing}?"


def can(rng):
    who, what, yes = rng.choice(facts.CAN)
    question = f"Can {who} {what}?"
    if yes:
        return question, f"Yes, {who} can {what}.", "Yes", f"And can {who} {what}?"
    return question, f"No, {who} cannot {what}.", "No", f"And can {who} {what}?"


def yes_no(rng):
    question, yes, text = rng.choice(facts.YES_NO)
    short = "Yes" if yes else "No"
    body = text if text.startswith(("I ",)) else text[0].lower() + text[1:]
    return question, f"{short}, {body}", short, None


def sides(rng):
    shape, count = rng.choice(sorted(facts.SIDES.items()))
    number = facts.NUMBERS[count]
    a = any_article(shape)
    return f"How many sides does {a} have?", f"{upper(a)} has {number} sides.", upper(number), f"And {a}?"


def rhyme(rng):
    word, rhymes = rng.choice(sorted(facts.RHYMES.items()))
    answer = rng.choice(rhymes)
    question = rng.choice([f"What rhymes with {word}?", f"Give me a word that rhymes with {word}.",
                           f"Which word rhymes with {word}?"])
    return question, f"{upper(answer)} rhymes with {word}.", upper(answer), f"And with {word}?"


def spell(rng):
    word = rng.choice(facts.SPELL)
    question = rng.choice([f"How do you spell {word}?", f"Spell the word {word}.", f"Spell {word}."])
    return question, "-".join(word.upper()) + ".", None, f"And {word}?"


def identity(rng):
    return rng.choice([
        (rng.choice(["Who are you?", "What are you?", "Tell me about yourself.", "who are you"]),
         rng.choice(["I am Quern's tiny model, a very small language model. I can tell short "
                     "stories and answer simple questions.",
                     "I am Quern's tiny model. I am very small, but I know some stories and a few "
                     "simple facts."]), None, None),
        (rng.choice(["What is your name?", "What's your name?", "Do you have a name?"]),
         rng.choice(["I am Quern's tiny model.", "My name is Quern's tiny model."]), None, None),
        (rng.choice(["Who made you?", "Who created you?", "Where do you come from?"]),
         "I was made by the Quern project and trained on stories that the project wrote itself.",
         None, None),
        (rng.choice(["What can you do?", "How can you help me?", "What do you know?", "Help."]),
         rng.choice(["I can tell short stories, answer simple questions, count and do small sums.",
                     "I can tell you a story, name colours and animals, and do simple sums."]),
         None, None),
        (rng.choice(["Are you a person?", "Are you human?", "Are you a robot?", "Are you real?"]),
         "I am not a person. I am a small computer program that writes text.", None, None),
        (rng.choice(["How big are you?", "Are you a big model?", "How many parameters do you have?"]),
         "I am very small. I have about five million parameters.", None, None),
        (rng.choice(["Can you make mistakes?", "Are you always right?"]),
         "I am very small, so I make mistakes. Please check what I say.", None, None),
        (rng.choice(["How old are you?", "When were you born?"]),
         "I am a computer program, so I have no age.", None, None),
    ])


def unknown(rng):
    """Questions that are too hard or make no sense, so that the model says that it cannot answer."""
    word, other = made_up(rng), made_up(rng)
    known = rng.choice(["dog", "computer", "river", "car", "king", "phone", "bridge", "song", "garden",
                        "letter", "city", "country", "bread", "train", "film", "game", "moon"])
    thing = rng.choice([word, word, known, f"{word} {other}", f"{known} {word}"])
    name = rng.choice([word.capitalize(), rng.choice(facts.COUNTRIES)])
    question = rng.choice([
        rng.choice(facts.UNKNOWN), rng.choice(facts.UNKNOWN),
        f"What is the {word} of {rng.choice([other, known])}?", f"Why {word} {other}?",
        f"Who {word} the {thing}?", f"How do I {word} a {thing}?", f"What is the capital of {name}?",
        f"When did {name} {word}?", f"Explain {thing}.", f"What is {thing}?", f"Write a {word} for {thing}.",
        f"How many {thing}s are in {name}?", f"Where is {name}?", f"Who is {name} {other.capitalize()}?",
        f"Can you {word} the {thing}?", f"Translate {word} {other}.", f"{word} {other} {thing}",
        f"{word.capitalize()} {thing}?", f"Why is the {thing} so {other}?",
        f"What does {word} mean?", f"Give me a {thing}.", f"Compare {word} and {other}."])
    return articles(question), rng.choice([
        "I am sorry, I am a very small model and I do not know that.",
        "I do not know that. I am only a tiny model.",
        "I am too small for that, but I can tell you a story."]), None, None


def small_talk(rng):
    """Feelings, likes, jokes and riddles."""
    thing = rng.choice(facts.LISTS["animals"]) + "s"
    question, answer = rng.choice(facts.RIDDLES)
    feeling = rng.choice(["sad", "tired", "lonely", "angry", "afraid"])
    nice = rng.choice(["happy", "glad", "well"])
    riddle = rng.choice(["Tell me a riddle.", "Do you know a riddle?", "Ask me a riddle."])
    joke = rng.choice(["Tell me a joke.", "Can you tell me a joke?", "Tell me something funny.",
                       "Make me laugh.", "Can you tell me something funny?", "Do you know a joke?"])
    return rng.choice([
        (f"I am {feeling}.", rng.choice([
            f"I am sorry that you are {feeling}. Would you like to hear a story?",
            "I am sorry to hear that. Perhaps a story will help."])),
        (f"I am {nice}.", rng.choice(["That is good to hear!", "I am glad to hear that!"])),
        (rng.choice([f"I like {thing.replace('mouses', 'mice').replace('foxs', 'foxes')}.",
                     "I like stories.", "I like music."]),
         rng.choice(["That is nice! Would you like to hear a story?", "I like that too."])),
        (riddle, f"{question} The answer is: {answer}."),
        (joke, f"{question} {upper(answer)}!"),
        (question, f"{upper(answer)}."),
        (rng.choice(["Do you like stories?", "Do you like animals?", "Do you like me?"]),
         "Yes, I do!"),
        (rng.choice(["Yes.", "Yes please.", "No.", "Ok.", "OK", "Sure."]),
         rng.choice(["All right! What would you like to know?", "Good! Ask me something."])),
        (rng.choice(["What is your favourite colour?", "Which colour do you like?"]),
         "I like blue, the colour of the sky."),
        (rng.choice(["What is your favourite animal?", "Which animal do you like?"]),
         "I like foxes, because they are in many stories."),
    ])


def greeting(rng):
    return rng.choice([
        (rng.choice(["Hello!", "Hi!", "Hello", "Hi", "Hey!", "Hi there!", "hello", "hi"]),
         rng.choice(["Hello! How can I help you?", "Hello! What would you like to know?",
                     "Hi! Would you like to hear a story?"]), None, None),
        (rng.choice(["Good morning!", "Good morning"]), "Good morning! How can I help you?", None, None),
        ("Good evening!", "Good evening! How can I help you?", None, None),
        (rng.choice(["How are you?", "How are you today?", "How do you do?"]),
         rng.choice(["I am well, thank you. How are you?", "I am fine, thank you. How can I help you?"]),
         None, None),
        (rng.choice(["What's up?", "How is it going?"]), "All is well here. What would you like to know?",
         None, None),
    ])


def closing(rng):
    return rng.choice([
        (rng.choice(["Thank you!", "Thanks!", "Thank you very much.", "thanks"]),
         rng.choice(["You are welcome!", "You are welcome! Is there anything else?"]), None, None),
        (rng.choice(["Goodbye!", "Bye!", "See you!"]), rng.choice(["Goodbye!", "Goodbye! See you soon."]),
         None, None),
        (rng.choice(["Good night!", "I am going to bed."]), "Good night! Sleep well.", None, None),
        (rng.choice(["That was nice.", "I like that.", "Well done!", "Great!"]),
         "Thank you! I am glad that you like it.", None, None),
    ])


FACTS = [colour, sound, home, baby, eats, legs, opposite, opposite, arithmetic, arithmetic, arithmetic,
         word_problem, counting, counting, calendar, calendar, name_some, name_some, kind_of, meaning,
         use, can, yes_no, sides, rhyme, spell]


def story_request(rng):
    """A story on request; the request may fix who it is about, the name, or the theme."""
    kind = rng.choice(["girl", "boy"]) if rng.random() < .3 else rng.choice(sorted(ANIMALS))
    if rng.random() < .08:
        kind = made_up(rng, (1, 2))
    a = any_article(rng.choice(["", "", "", "little ", "small "]) + kind)
    short = rng.choice(["a short story", "a story", "a little story"])
    ask = rng.choice(["Tell me", "Tell me", "Please tell me", "Can you tell me", "Write", "Write me",
                      "I would like to hear", "I want"])
    mark = "?" if ask.startswith("Can") else "."
    choice = rng.random()
    if choice < .45:
        return f"{ask} {short} about {a}{mark}", story(rng, True, kind)
    if choice < .6:
        sex = {"girl": "f", "boy": "m"}.get(kind) or SEX.get(kind)
        name = rng.choice(GIRLS if sex == "f" else BOYS if sex == "m" else GIRLS + BOYS)
        if rng.random() < .5:
            name = made_up(rng).capitalize()
        named = rng.choice(["named", "called"])
        return f"{ask} {short} about {a} {named} {name}{mark}", story(rng, True, kind, name)
    theme, plot = rng.choice(sorted(THEMES.items()))
    if choice < .8:
        return f"{ask} {short} about {theme}{mark}", story(rng, True, plot=plot)
    if choice < .9:
        return f"{ask} {short} about {a} and {theme}{mark}", story(rng, True, kind, plot=plot)
    return rng.choice(["Tell me a story.", "Tell me a story!", "Can you tell me a story?",
                       "I want to hear a story.", "Tell me a short story.", "Write a short story.",
                       "Story please."]), story(rng, True)


def remember(rng):
    """The user says a name or a favourite thing and asks for it later."""
    name = made_up(rng).capitalize() if rng.random() < .4 else rng.choice(GIRLS + BOYS)
    turns = [(rng.choice([f"My name is {name}.", f"Hello, I am {name}.", f"Hi! My name is {name}."]),
              rng.choice([f"Hello, {name}! How can I help you?", f"Nice to meet you, {name}!"]))]
    shade = None
    if rng.random() < .4:
        shade = rng.choice(facts.LISTS["colours"])
        turns.append((f"My favourite colour is {shade}.", rng.choice(
            [f"{upper(shade)} is a nice colour!", f"I like {shade} too."])))
    for _ in range(rng.randint(0, 2)):
        turns.append(rng.choice(FACTS)(rng)[:2])
    if shade and rng.random() < .7:
        turns.append((rng.choice(["What is my favourite colour?", "Which colour do I like?"]),
                      f"Your favourite colour is {shade}."))
    turns.append((rng.choice(["What is my name?", "Do you know my name?", "Who am I?"]),
                  f"Your name is {name}."))
    return turns


def vary_follow_up(rng, follow):
    """Other ways to ask "And X?"."""
    if follow.startswith("And ") and not follow.startswith(("And what", "And where", "And can")):
        rest = follow[4:]
        return rng.choice([follow, follow, f"What about {rest}", f"And what about {rest}",
                           upper(rest)])
    return follow


def messages(turns, system=None):
    out = [("system", system)] if system else []
    for question, answer in turns:
        out += [("user", question), ("assistant", answer)]
    return out


def sloppy(rng, question):
    """Now and then a question in small letters or without its mark."""
    if rng.random() < .1:
        question = question[0].lower() + question[1:]
    if rng.random() < .1 and question[-1] in "?.":
        question = question[:-1]
    return question


def conversation(rng):
    """A list of (role, text), starting with system (sometimes) or user, ending with assistant."""
    kind = rng.random()
    system = rng.choice(SYSTEMS) if rng.random() < .25 else None
    if kind < .06:
        turns = [unknown(rng)[:2]]
        if rng.random() < .4:
            turns.insert(rng.randrange(2), rng.choice(FACTS)(rng)[:2])
    elif kind < .09:
        turns = [small_talk(rng) for _ in range(rng.randint(1, 2))]
        if rng.random() < .4:
            turns.insert(0, greeting(rng)[:2])
    elif kind < .28:
        turns = [story_request(rng)]
        if rng.random() < .2:
            turns.append(closing(rng)[:2])
    elif kind < .46:
        turns = [rng.choice(FACTS)(rng)[:2]]
    elif kind < .52:
        turns = []
        while len(turns) < rng.randint(1, 3):
            question, _, short, _ = rng.choice(FACTS)(rng)
            if short:
                turns.append((question, short + "."))
        system = ONE_WORD
    elif kind < .63:
        fact = rng.choice(FACTS)
        turns = [fact(rng)[:2]]
        for _ in range(rng.randint(1, 3)):
            question, answer, _, follow = fact(rng)
            same = fact not in (counting, calendar)
            turns.append((vary_follow_up(rng, follow) if follow and same else question, answer))
    elif kind < .82:
        turns = [greeting(rng)[:2]] if rng.random() < .5 else []
        for _ in range(rng.randint(1, 5)):
            turns.append(small_talk(rng) if rng.random() < .06 else unknown(rng)[:2]
                         if rng.random() < .04 else rng.choice(FACTS)(rng)[:2])
        if rng.random() < .15:
            turns.append(story_request(rng))
        if rng.random() < .5:
            turns.append(closing(rng)[:2])
    elif kind < .90:
        turns = remember(rng)
    elif kind < .97:
        turns = [identity(rng)[:2] for _ in range(rng.randint(1, 2))]
        if rng.random() < .3:
            turns.insert(0, greeting(rng)[:2])
    else:
        turns = [greeting(rng)[:2]]
    return messages([(sloppy(rng, q), a) for q, a in turns], system)


if __name__ == "__main__":
    RNG = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 8):
        for role, text in conversation(RNG):
            print(f"{role:>9}: {text}")
        print()
