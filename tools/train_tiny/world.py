"""The things that stories are made of: who can appear, where, with what, in which weather."""

CONSONANTS = "b c d f g h j k l m n p r s t v w z br dr fl gr kr pl sh st th tr".split()
VOWELS = "a e i o u a e i o ee oo ai".split()
ENDINGS = ["", "", "n", "l", "r", "s", "x", "t", "nd", "ck"]

GIRLS = """Mila Anna Rosa Lily Nora Tess Ivy Clara Maya Zoe Ella June Hana Ruth Lena Mary Lucy Emma
Sofia Nina Alice Grace Sara Amy""".split()
BOYS = """Tom Ben Leo Sam Max Finn Oscar Noah Theo Hugo Eli Jack Omar Ravi Jonas Felix Peter Adam
Paul Luca Daniel Henry Oliver Tim""".split()
SHE_ANIMALS = """Poppy Hazel Fern Daisy Willow Clover Maple Luna Pearl Olive Minnie Dot Bella Rosie
Honey Pepper Ruby Tilly Penny Mimi""".split()
HE_ANIMALS = """Pip Bruno Rusty Moss Biscuit Otto Barley Toby Milo Ash Coco Rufus Nutmeg Bobby
Sunny Benny Pebble Button Charlie Gus""".split()

# kind: where such an animal lives
ANIMALS = {
    "fox": ["a den under the old oak tree", "a cosy den at the edge of the forest"],
    "rabbit": ["a burrow under the hill", "a warm burrow beside the meadow"],
    "mouse": ["a tiny hole behind the mill", "a little house inside a hollow log"],
    "bear": ["a cave in the forest", "a big cave behind the waterfall"],
    "hedgehog": ["a nest of dry leaves", "a small house under the hedge"],
    "squirrel": ["a hollow tree in the forest", "a nest high in the pine tree"],
    "otter": ["a den by the river", "a snug den under the river bank"],
    "duck": ["a nest by the pond", "the reeds beside the lake"],
    "frog": ["a pond full of lilies", "a green pond near the village"],
    "owl": ["the old barn", "a hollow oak tree on the hill"],
    "badger": ["a deep den in the forest", "a tidy den under the roots of a beech tree"],
    "deer": ["a quiet part of the forest", "a green valley"],
    "cat": ["a small house by the sea", "a bakery in the village"],
    "dog": ["a farm near the river", "a little house with a green door"],
    "lamb": ["a farm on the hill", "a green field near the village"],
    "goat": ["a farm in the mountains", "a stone barn on the hill"],
    "pony": ["a stable on the farm", "a wide green field"],
    "turtle": ["a quiet pond", "a sandy place near the sea"],
    "beaver": ["a house of sticks in the river", "a house in the middle of the lake"],
    "mole": ["a long tunnel under the garden", "a neat room under the meadow"],
    "penguin": ["an island of snow", "a cold beach by the sea"],
    "lion": ["the tall yellow grass", "a warm rock on the wide plain"],
    "elephant": ["the wide plain", "a forest with a big river"],
    "monkey": ["a tall tree in the jungle", "a jungle by the sea"],
    "panda": ["a bamboo forest", "a misty mountain"],
    "bird": ["a nest in the apple tree", "a nest in the church tower"],
    "pig": ["a farm near the village", "a small farm by the river"],
    "chick": ["a farm near the village", "a straw nest in the barn"],
    "dragon": ["a cave in the mountains", "a castle on a hill"],
    "unicorn": ["a valley full of flowers", "a silver forest"],
    "robot": ["a workshop in the village", "a small house full of tools"],
    "tiger": ["the green jungle", "a jungle by the river"],
    "giraffe": ["the wide plain", "the tall yellow grass"],
    "zebra": ["the wide plain", "the tall yellow grass"],
    "wolf": ["a den in the dark forest", "a cave in the mountains"],
    "snail": ["a garden behind the mill", "the old wall of the garden"],
    "bee": ["a hive under the roof", "a hive in the apple orchard"],
    "horse": ["a stable near the village", "a green field"],
    "cow": ["a farm in the valley", "a barn near the river"],
    "hen": ["a farm near the village", "a red barn"],
    "goose": ["a farm by the lake", "a farm near the mill"],
    "sheep": ["a green field", "a farm in the mountains"],
    "donkey": ["a stable behind the mill", "a farm on the hill"],
    "dinosaur": ["a warm valley", "a forest of giant ferns"],
    "giant": ["a huge house in the mountains", "a cave in the mountains"],
    "fairy": ["a flower in the garden", "a hollow tree in the forest"],
    "wizard": ["a tall tower in the forest", "a tower on the hill"],
    "princess": ["a castle on the hill", "a palace by the sea"],
    "prince": ["a castle on the hill", "a palace by the sea"],
    "king": ["a castle on the hill", "a palace of white stone"],
    "queen": ["a castle on the hill", "a palace of white stone"],
    "knight": ["a castle by the river", "an old tower on the hill"],
}
FANTASY_HOMES = ["a quiet place in the forest", "a small house near the river",
                 "a house at the end of the road"]
# kinds with a fixed sex, and with names of people
SEX = {"princess": "f", "queen": "f", "fairy": "f", "king": "m", "prince": "m", "wizard": "m",
       "cow": "f", "hen": "f"}
PEOPLE = {"princess", "queen", "king", "prince", "wizard", "knight", "fairy", "giant"}
NEIGHBOURS = """fox rabbit mouse bear hedgehog squirrel otter duck frog badger deer cat dog lamb goat
turtle beaver mole bird pig""".split()

KID_HOMES = [
    "a small house by the sea", "a village on the hill", "a farm near the river",
    "a little house at the edge of the forest", "a house with a blue door",
    "a town by the lake", "a tall house near the market", "a cottage in the valley",
]


def made_up(rng, syllables=(2, 3)):
    """A word that nobody knows: teaches the model to copy words that it has never seen."""
    word = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS)
                   for _ in range(rng.randint(*syllables)))
    return word + rng.choice(ENDINGS)


TRAITS = ["kind", "curious", "shy", "cheerful", "clever", "careful", "gentle", "quiet", "playful",
          "brave", "patient", "busy", "friendly"]
TRAIT_SHOWS = {
    "kind": ["{H.he} always had a nice word for everyone", "{H.he} liked to help the neighbours"],
    "curious": ["{H.he} asked a hundred questions every day",
                "{H.he} wanted to know how everything worked"],
    "shy": ["{H.he} often hid when visitors came", "{H.he} spoke in a very small voice"],
    "cheerful": ["{H.he} sang from morning to night", "{H.he} smiled at everyone"],
    "clever": ["{H.he} always had a new idea", "{H.he} could solve any riddle"],
    "careful": ["{H.he} looked twice before every step", "{H.he} kept everything in its place"],
    "gentle": ["even the butterflies were not afraid of {H.him}",
               "{H.he} never shouted at anyone"],
    "quiet": ["{H.he} liked to sit and listen to the wind", "{H.he} thought more than {H.he} spoke"],
    "playful": ["{H.he} turned every job into a game", "{H.he} was always ready to play"],
    "brave": ["{H.he} was not afraid of the dark", "{H.he} liked to climb and explore"],
    "patient": ["{H.he} could wait for a long time without a word",
                "{H.he} never hurried"],
    "busy": ["{H.he} always had something to do", "{H.he} never sat still for long"],
    "friendly": ["{H.he} knew everyone in the neighbourhood", "{H.he} waved at every bird"],
}

# name: preposition, spots where a thing can lie, what one notices there
PLACES = {
    "forest": ("in", ["under a fern", "behind a mossy log", "between the roots of an oak tree"],
               ["The leaves whispered above.", "The air smelled of pine.",
                "Soft moss covered the stones."]),
    "meadow": ("in", ["in the tall grass", "beside a white stone", "under a patch of clover"],
               ["Bees hummed from flower to flower.", "The grass waved like a green sea.",
                "Yellow butterflies danced in the air."]),
    "river": ("by", ["between two wet stones", "in the reeds", "on the sandy bank"],
              ["The water sparkled in the light.", "The river sang its quiet song.",
               "Small fish jumped in the water."]),
    "hill": ("on", ["behind a big rock", "under a thorn bush", "beside an old fence"],
             ["From there the whole valley could be seen.", "The wind was strong up there.",
              "Sheep looked up from the grass."]),
    "beach": ("on", ["under a pile of seaweed", "in a rock pool", "behind a sand dune"],
              ["The waves rolled in and out.", "The sand was warm and soft.",
               "Gulls called above the sea."]),
    "orchard": ("in", ["under an apple tree", "beside a wooden ladder", "in a pile of leaves"],
                ["Red apples shone between the leaves.", "The air smelled sweet.",
                 "A blackbird sang on a branch."]),
    "pond": ("by", ["among the reeds", "under a willow tree", "beside a flat stone"],
             ["A frog jumped into the water with a splash.", "The water was still and green.",
              "A dragonfly rested on a leaf."]),
    "market": ("at", ["under a fruit stall", "behind a barrel", "beside the fountain"],
               ["It smelled of bread and oranges.", "People talked and laughed everywhere.",
                "A man played a merry tune on a violin."]),
    "garden": ("in", ["behind the watering can", "under the rose bush",
                      "between two rows of beans"],
               ["Roses climbed up the wall.", "A snail crept slowly over a leaf.",
                "The earth smelled fresh."]),
    "old mill": ("at", ["beside the wooden wheel", "under a sack of flour", "on the stone steps"],
                 ["The big wheel turned slowly.", "White flour dust floated in the air.",
                  "The old wood creaked."]),
    "cave": ("in", ["on a cold ledge", "behind a tall stone", "beside a still pool"],
             ["Water dripped from the roof.", "Every sound came back as an echo.",
              "It was cool and dim."]),
    "old bridge": ("by", ["under the stone arch", "in a crack of the wall",
                          "beside the last post"],
                   ["The water rushed far below.", "Moss grew on the old stones.",
                    "Swallows flew under the arch."]),
    "barn": ("in", ["in the hay", "behind a ladder", "under an old cart"],
             ["It smelled of hay.", "Dust danced in a beam of light.",
              "A cow looked up and went on chewing."]),
    "valley": ("in", ["under a hazel bush", "beside the stream", "behind a fallen tree"],
               ["A stream ran between the stones.", "The mountains stood all around.",
                "Everything was green and quiet."]),
    "lighthouse": ("at", ["on the winding stairs", "behind a coil of rope", "under a bench"],
                   ["The white tower rose into the sky.", "The sea roared against the rocks.",
                    "A big lamp turned at the top."]),
}

OBJECTS = [
    ("kite", ["red", "blue", "yellow", "striped"]), ("ball", ["red", "blue", "striped", "green"]),
    ("scarf", ["red", "soft", "woolen", "striped"]), ("bell", ["silver", "little", "golden"]),
    ("boat", ["wooden", "blue", "little"]), ("drum", ["red", "little", "wooden"]),
    ("whistle", ["silver", "wooden", "tin"]), ("hat", ["green", "straw", "red", "pointed"]),
    ("lantern", ["brass", "little", "paper"]), ("button", ["golden", "shiny", "blue"]),
    ("key", ["golden", "rusty", "tiny"]), ("book", ["blue", "thick", "old"]),
    ("mitten", ["red", "woolen", "warm"]), ("flute", ["wooden", "silver"]),
    ("ribbon", ["blue", "silk", "yellow"]), ("shell", ["pink", "white", "shiny"]),
    ("marble", ["green", "glass", "shiny"]), ("spoon", ["wooden", "silver"]),
    ("top", ["wooden", "striped", "red"]), ("blanket", ["soft", "blue", "woolen"]),
    ("umbrella", ["yellow", "red", "blue"]), ("teddy bear", ["brown", "soft", "old"]),
    ("basket", ["straw", "little", "brown"]), ("music box", ["little", "silver", "old"]),
    ("feather", ["blue", "white", "golden"]), ("cup", ["blue", "tin", "white"]),
]
OBJECT_LOVE = {
    "kite": "flew it every windy day", "ball": "played with it every day",
    "scarf": "wore it every day", "bell": "loved its clear sound",
    "boat": "sailed it on the water every week", "drum": "played it every evening",
    "whistle": "could make it sing like a bird", "hat": "wore it every day",
    "lantern": "lit it every night", "button": "kept it in a little box",
    "key": "wore it on a string", "book": "read in it every night",
    "mitten": "wore it on every cold day", "flute": "played a tune on it every evening",
    "ribbon": "wore it on every feast day", "shell": "could hear the sea in it",
    "marble": "liked to hold it up to the light", "spoon": "used it at every meal",
    "top": "could make it spin for a whole minute", "blanket": "could not sleep without it",
    "umbrella": "even liked rainy days because of it", "teddy bear": "took it everywhere",
    "basket": "carried it on every walk", "music box": "listened to its song every night",
    "feather": "kept it beside the bed", "cup": "drank from it every morning",
}

FOODS = ["honey cake", "apple pie", "loaf of bread", "pot of soup", "basket of berries",
         "jar of honey", "bag of nuts", "plum cake", "bowl of cherries", "round cheese",
         "plate of pancakes", "basket of pears", "carrot cake", "bag of cookies"]

# weather: openings of the day, what one notices
WEATHER = {
    "sunny": (["One sunny morning,", "One bright morning,", "One warm day,", "On a fine summer day,"],
              ["The sun shone and the sky was blue.", "There was not a cloud in the sky.",
               "The sun felt warm and good."]),
    "windy": (["One windy day,", "On a windy afternoon,", "One windy morning,"],
              ["The wind blew through the trees.", "The clouds ran across the sky.",
               "The wind was wild and merry."]),
    "rainy": (["One rainy day,", "On a grey and rainy morning,", "One wet afternoon,"],
              ["The rain tapped on the leaves.", "There were puddles everywhere.",
               "Grey clouds hung over the land."]),
    "snowy": (["One cold winter day,", "One snowy morning,", "On a white winter morning,"],
              ["Snow lay on every branch.", "The air was cold and clear.",
               "The snow crunched under every step."]),
    "foggy": (["One foggy morning,", "On a misty autumn morning,"],
              ["The fog was as thick as milk.", "The world looked soft and grey."]),
    "spring": (["One spring morning,", "On the first day of spring,", "One fresh spring day,"],
               ["The birds sang in every tree.", "New leaves shone in the light.",
                "The first flowers were open."]),
    "autumn": (["One autumn day,", "On a golden autumn afternoon,", "One cool autumn morning,"],
               ["Red and yellow leaves fell from the trees.", "The air smelled of apples.",
                "The light was golden."]),
}

# name in the text, kind, sex
MENTORS = [("the old owl", "owl", "f"), ("the wise turtle", "turtle", "m"),
           ("the old badger", "badger", "m"), ("the kind baker", "baker", "f"),
           ("the old fisherman", "fisherman", "m"), ("the gardener", "gardener", "m"),
           ("the miller", "miller", "m"), ("the old goat", "goat", "f"),
           ("the shepherd", "shepherd", "m"), ("the old woman from the mill", "woman", "f")]
