"""Small facts for the questions and answers of chat.py."""

COLOURS = {
    "the sky on a clear day": "blue", "grass": "green", "snow": "white", "a banana": "yellow",
    "a strawberry": "red", "a tomato": "red", "a carrot": "orange", "a lemon": "yellow",
    "coal": "black", "milk": "white", "a frog": "green", "an orange": "orange", "the sun": "yellow",
    "a cherry": "red", "a leaf in spring": "green", "a crow": "black", "a swan": "white",
    "a pumpkin": "orange", "chocolate": "brown", "a flamingo": "pink", "a plum": "purple",
    "blood": "red", "a cucumber": "green", "an elephant": "grey", "a polar bear": "white",
    "the sea": "blue", "a pig": "pink", "a fire engine": "red", "corn": "yellow", "salt": "white",
    "a blueberry": "blue", "a pea": "green", "a bear in the forest": "brown", "a ruby": "red",
    "gold": "yellow", "the night sky": "black", "a violet": "purple", "a chestnut": "brown",
}
SOUNDS = {
    "dog": ("barks", "woof"), "cat": ("meows", "meow"), "cow": ("moos", "moo"),
    "duck": ("quacks", "quack"), "sheep": ("bleats", "baa"), "pig": ("oinks", "oink"),
    "horse": ("neighs", "neigh"), "owl": ("hoots", "hoo hoo"), "frog": ("croaks", "ribbit"),
    "lion": ("roars", "roar"), "bee": ("buzzes", "buzz"), "snake": ("hisses", "hiss"),
    "mouse": ("squeaks", "squeak"), "rooster": ("crows", "cock-a-doodle-doo"),
    "chick": ("peeps", "peep"), "donkey": ("brays", "hee-haw"), "wolf": ("howls", "awoo"),
    "crow": ("caws", "caw"), "goose": ("honks", "honk"), "turkey": ("gobbles", "gobble"),
    "goat": ("bleats", "meh"), "elephant": ("trumpets", "toot"), "hen": ("clucks", "cluck"),
}
HOMES = {
    "bee": "a hive", "bird": "a nest", "fox": "a den", "rabbit": "a burrow", "fish": "the water",
    "spider": "a web", "bear": "a cave or a den", "horse": "a stable", "cow": "a barn",
    "pig": "a sty", "ant": "an anthill", "lion": "the grassland", "penguin": "the cold south",
    "polar bear": "the cold north", "camel": "the desert", "whale": "the sea", "frog": "a pond",
    "mole": "a tunnel under the ground", "squirrel": "a tree", "beaver": "a lodge in the water",
    "monkey": "the jungle", "owl": "a hollow tree", "hen": "a coop", "dog": "a kennel or a house",
    "shark": "the sea", "crab": "the sea near the beach", "panda": "a bamboo forest",
    "snail": "its shell",
}
BABIES = {
    "dog": "puppy", "cat": "kitten", "cow": "calf", "horse": "foal", "sheep": "lamb",
    "duck": "duckling", "hen": "chick", "bear": "cub", "pig": "piglet", "goat": "kid",
    "frog": "tadpole", "lion": "cub", "deer": "fawn", "swan": "cygnet", "goose": "gosling",
    "owl": "owlet", "kangaroo": "joey", "elephant": "calf", "whale": "calf", "fox": "cub",
    "butterfly": "caterpillar", "wolf": "cub",
}
EATS = {
    "rabbit": "grass and carrots", "cow": "grass", "panda": "bamboo", "squirrel": "nuts",
    "lion": "meat", "monkey": "fruit", "bee": "nectar from flowers", "horse": "grass and hay",
    "cat": "fish and meat", "mouse": "seeds and cheese", "bear": "berries, fish and honey",
    "frog": "flies", "owl": "mice", "goat": "grass and leaves", "penguin": "fish",
    "koala": "leaves", "caterpillar": "leaves", "hen": "grain and worms", "shark": "fish",
    "elephant": "leaves and grass", "spider": "flies", "giraffe": "leaves from tall trees",
}
LEGS = {
    "dog": 4, "cat": 4, "bird": 2, "spider": 8, "ant": 6, "bee": 6, "horse": 4, "snake": 0,
    "fish": 0, "hen": 2, "cow": 4, "person": 2, "beetle": 6, "butterfly": 6, "frog": 4, "owl": 2,
    "mouse": 4, "worm": 0, "lion": 4, "duck": 2, "octopus": 0, "fly": 6,
}
OPPOSITES = [
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("day", "night"), ("happy", "sad"),
    ("fast", "slow"), ("tall", "short"), ("old", "young"), ("light", "dark"), ("open", "closed"),
    ("hard", "soft"), ("wet", "dry"), ("full", "empty"), ("left", "right"), ("good", "bad"),
    ("high", "low"), ("near", "far"), ("loud", "quiet"), ("rich", "poor"), ("strong", "weak"),
    ("early", "late"), ("in", "out"), ("on", "off"), ("yes", "no"), ("black", "white"),
    ("clean", "dirty"), ("thick", "thin"), ("sweet", "sour"), ("first", "last"), ("win", "lose"),
    ("begin", "end"), ("come", "go"), ("push", "pull"), ("love", "hate"), ("north", "south"),
    ("east", "west"), ("summer", "winter"), ("inside", "outside"), ("above", "below"),
    ("before", "after"), ("brave", "afraid"), ("easy", "difficult"), ("wide", "narrow"),
    ("deep", "shallow"), ("heavy", "light"), ("true", "false"), ("always", "never"),
    ("front", "back"), ("top", "bottom"), ("laugh", "cry"), ("buy", "sell"), ("give", "take"),
    ("friend", "enemy"), ("question", "answer"), ("smooth", "rough"), ("sharp", "blunt"),
    ("warm", "cool"), ("new", "old"), ("long", "short"), ("asleep", "awake"), ("polite", "rude"),
]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = """January February March April May June July August September October November
December""".split()
SEASONS = ["spring", "summer", "autumn", "winter"]
NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen twenty""".split()
LISTS = {
    "fruits": ["apple", "banana", "cherry", "pear", "plum", "orange", "grape", "strawberry",
               "lemon", "peach", "mango", "melon"],
    "vegetables": ["carrot", "potato", "cabbage", "onion", "pea", "bean", "cucumber", "pumpkin",
                   "spinach", "leek", "broccoli"],
    "animals": ["dog", "cat", "horse", "fox", "rabbit", "bear", "lion", "elephant", "duck", "owl",
                "mouse", "frog"],
    "farm animals": ["cow", "pig", "sheep", "horse", "goat", "hen", "duck", "goose"],
    "wild animals": ["lion", "bear", "wolf", "fox", "elephant", "tiger", "deer", "monkey"],
    "birds": ["owl", "crow", "swan", "duck", "eagle", "sparrow", "robin", "penguin", "swallow"],
    "colours": ["red", "blue", "green", "yellow", "orange", "purple", "white", "black", "pink",
                "brown"],
    "flowers": ["rose", "tulip", "daisy", "sunflower", "lily", "violet", "poppy"],
    "trees": ["oak", "pine", "beech", "willow", "birch", "maple", "chestnut"],
    "toys": ["ball", "doll", "kite", "teddy bear", "train", "puzzle", "drum"],
    "shapes": ["circle", "square", "triangle", "rectangle", "star", "oval"],
    "drinks": ["water", "milk", "tea", "juice", "cocoa", "lemonade"],
    "things to wear": ["hat", "scarf", "shirt", "coat", "shoes", "gloves", "socks"],
    "tools": ["hammer", "saw", "shovel", "rake", "knife", "brush"],
    "musical instruments": ["piano", "violin", "flute", "drum", "guitar", "trumpet", "harp"],
    "parts of the body": ["head", "arm", "leg", "hand", "foot", "nose", "ear", "knee"],
    "insects": ["bee", "ant", "butterfly", "fly", "beetle", "dragonfly"],
    "things in the sky": ["sun", "moon", "stars", "clouds", "birds", "rainbow"],
}
KINDS = {  # word: what it is
    "a carrot": "a vegetable", "an apple": "a fruit", "a rose": "a flower", "an oak": "a tree",
    "a robin": "a bird", "a trout": "a fish", "a bee": "an insect", "a hammer": "a tool",
    "a piano": "a musical instrument", "a banana": "a fruit", "a potato": "a vegetable",
    "a poodle": "a dog", "an eagle": "a bird", "a tulip": "a flower", "a pine": "a tree",
    "a shark": "a fish", "a beetle": "an insect", "a chair": "a piece of furniture",
    "a violin": "a musical instrument", "a scarf": "something to wear", "a pear": "a fruit",
}
MEANINGS = {
    "rain": "Rain is water that falls from the clouds.",
    "snow": "Snow is frozen water that falls from the clouds in white flakes.",
    "a rainbow": "A rainbow is a band of many colours in the sky. It appears when the sun shines "
                 "through rain.",
    "the moon": "The moon is a big ball of rock that goes around the earth.",
    "the sun": "The sun is a star. It gives us light and warmth.",
    "a forest": "A forest is a large place with many trees.",
    "a river": "A river is a long stream of water that flows to the sea.",
    "an island": "An island is land with water all around it.",
    "a mountain": "A mountain is a very high piece of land.",
    "a desert": "A desert is a dry place with very little rain.",
    "a friend": "A friend is somebody who likes you and helps you.",
    "a baker": "A baker is a person who makes bread and cakes.",
    "a doctor": "A doctor is a person who helps sick people to get well.",
    "a teacher": "A teacher is a person who helps others to learn.",
    "a farmer": "A farmer is a person who grows food and keeps animals.",
    "a clock": "A clock is a thing that shows the time.",
    "a lantern": "A lantern is a lamp that you can carry.",
    "a lighthouse": "A lighthouse is a tower with a light that shows ships the way.",
    "honey": "Honey is a sweet food that bees make from nectar.",
    "bread": "Bread is a food that is made from flour and water.",
    "ice": "Ice is frozen water.", "steam": "Steam is very hot water in the air.",
    "wind": "Wind is moving air.", "thunder": "Thunder is the loud sound that follows lightning.",
    "a seed": "A seed is a small thing from which a plant can grow.",
    "a library": "A library is a place where you can borrow books.",
    "a map": "A map is a picture that shows where places are.",
    "a quern": "A quern is a stone mill that is turned by hand to grind grain.",
    "a story": "A story tells what happened to somebody. It can be true or made up.",
    "a triangle": "A triangle is a shape with three sides.",
    "a circle": "A circle is a round shape.",
    "an umbrella": "An umbrella is a thing that keeps the rain off your head.",
    "a puddle": "A puddle is a small pool of rain water on the ground.",
}
USES = {
    "a spoon": "to eat soup", "a pen": "to write", "scissors": "to cut paper", "an umbrella":
    "to stay dry in the rain", "a key": "to open a door", "a lamp": "to make light",
    "a broom": "to sweep the floor", "a bed": "to sleep", "a boat": "to travel on water",
    "a hammer": "to hit nails", "a clock": "to tell the time", "a map": "to find the way",
    "a bell": "to make a sound", "a cup": "to drink", "a coat": "to keep warm",
    "a ladder": "to climb up", "a needle": "to sew", "soap": "to wash", "a towel": "to dry",
    "a pot": "to cook", "a camera": "to take pictures", "a book": "to read",
}
CAN = [
    ("a fish", "swim", True), ("a bird", "fly", True), ("a stone", "swim", False),
    ("a cat", "climb a tree", True), ("a cow", "fly", False), ("a frog", "jump", True),
    ("a snail", "run fast", False), ("a penguin", "swim", True), ("a penguin", "fly", False),
    ("an owl", "see at night", True), ("a horse", "run fast", True), ("a pig", "fly", False),
    ("a duck", "swim", True), ("a tree", "walk", False), ("a bee", "fly", True),
    ("a dog", "bark", True), ("a fish", "walk", False), ("a monkey", "climb a tree", True),
    ("an elephant", "jump over a house", False), ("a butterfly", "fly", True),
]
YES_NO = [
    ("Is ice cold?", True, "Ice is very cold."), ("Is fire cold?", False, "Fire is hot."),
    ("Is the sun hot?", True, "The sun is very hot."), ("Is snow black?", False, "Snow is white."),
    ("Is an elephant big?", True, "An elephant is very big."),
    ("Is a mouse bigger than an elephant?", False, "A mouse is much smaller than an elephant."),
    ("Is sugar sweet?", True, "Sugar is sweet."), ("Is a lemon sweet?", False, "A lemon is sour."),
    ("Is water wet?", True, "Water is wet."), ("Is a stone soft?", False, "A stone is hard."),
    ("Is the grass green?", True, "Grass is green."),
    ("Is a whale a fish?", False, "A whale lives in the sea, but it is not a fish."),
    ("Is a bat a bird?", False, "A bat can fly, but it is not a bird."),
    ("Is a spider an insect?", False, "A spider has eight legs, and an insect has six."),
    ("Do cows give milk?", True, "Cows give milk."), ("Do fish have legs?", False,
     "Fish have fins."), ("Do birds have wings?", True, "Birds have wings."),
    ("Does the sun rise in the east?", True, "The sun rises in the east."),
    ("Does the sun rise in the west?", False, "The sun rises in the east."),
    ("Is a tomato blue?", False, "A tomato is red."),
    ("Do bees make honey?", True, "Bees make honey."), ("Do hens lay eggs?", True,
     "Hens lay eggs."), ("Do cats lay eggs?", False, "Cats have kittens."),
    ("Is winter warmer than summer?", False, "Winter is colder than summer."),
]
SIDES = {"triangle": 3, "square": 4, "rectangle": 4, "pentagon": 5, "hexagon": 6, "octagon": 8}
RHYMES = {
    "cat": ["hat", "bat", "mat"], "dog": ["frog", "log", "fog"], "house": ["mouse"],
    "tree": ["bee", "sea", "knee"], "star": ["car", "far", "jar"], "cake": ["lake", "snake"],
    "moon": ["spoon", "noon"], "light": ["night", "kite", "bright"], "ring": ["king", "sing"],
    "bear": ["chair", "pear", "hair"], "fox": ["box", "socks"], "day": ["play", "way", "say"],
    "fish": ["dish", "wish"], "goat": ["boat", "coat"], "hen": ["pen", "ten", "men"],
    "snow": ["go", "low", "crow"], "book": ["hook", "cook", "look"], "sun": ["run", "fun", "bun"],
}
SPELL = """cat dog sun moon tree fish bird book hand milk house apple bread stone water green horse
mouse cloud river happy star rain snow frog bear lamp boat door rose""".split()
UNKNOWN = [
    "Who won the match yesterday?", "Write a program in Python.", "Write a poem.",
    "What is the weather today?", "Who is the president?", "How do I fix my car?",
    "What is the meaning of life?", "Explain quantum physics.", "How much does a phone cost?",
    "What time is it?", "Can you book a flight for me?", "Translate this into German.",
    "What is the population of China?", "Who wrote this book?", "How far away is the moon?",
    "What is the square root of 1234?", "Tell me the news.", "Which phone should I buy?",
    "How does a computer work?", "What happened in the year 1800?", "Solve this equation.",
    "How do I cook rice?", "What is the tallest building in the world?", "Where am I?",
    "Play some music.", "What is the best film?", "Who invented the telephone?",
    "Write an essay about history.", "What is the stock price?", "How old am I?",
    "What is 345 times 678?", "Show me a picture of a cat.", "Send a letter to my friend.",
]
COUNTRIES = """France Spain Italy Germany England Poland China Japan India Brazil Canada Mexico Egypt
Kenya Russia Norway Sweden Greece Turkey Peru Chile""".split()
RIDDLES = [
    ("What has hands but cannot clap?", "a clock"), ("What has teeth but cannot bite?", "a comb"),
    ("What has a neck but no head?", "a bottle"), ("What has legs but cannot walk?", "a table"),
    ("What gets wet while it dries?", "a towel"), ("What has one eye but cannot see?", "a needle"),
    ("What has leaves but is not a tree?", "a book"), ("What runs but has no legs?", "a river"),
    ("What has keys but cannot open a door?", "a piano"),
    ("What goes up and never comes down?", "your age"),
]
