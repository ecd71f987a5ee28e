"""The plots: each takes a prepared Tale (see grammar.py) and tells one kind of story.

Bindings that every plot may use: H hero, F friend, M older helper, N a third character,
O an object, D something to eat, P and Q two places. The hero and the friend are introduced by
the Tale before the plot starts (F only when the plot asks for it with t.friend()).
"""


def lost_object(t):
    """The hero loses a loved thing, looks for it with a friend and finds it."""
    t.owns()
    t.friend()
    t.day()
    t.say("{H} took the {O} and went to {P.the}.",
          "{H} carried the {O} to {P.the} to play.",
          "{H} went for a walk {P.at} with the {O}.")
    t.sense()
    t.say("{H.he} played and played until {H.he} was tired. But when {H.he} wanted to go home, the {O.short} was gone.",
          "On the way {H.he} stopped to [look at a beetle|watch a cloud|listen to a bird|smell the flowers]. When {H.he} looked down again, the {O.short} was gone.",
          "{H.he} lay down for a short nap. When {H.he} woke up, {H.he} could not see the {O.short} anywhere.",
          "There was so much to see that {H.he} forgot the {O.short}. Only at home did {H.he} notice that it was missing.")
    t.say("<H Oh no! My {O} is gone!>", "<H Where is my {O}?>",
          "{H} looked left and right. <- It must be somewhere.>",
          "{H.his} heart felt heavy, and a tear ran down {H.his} cheek.")
    t.say("{F} heard this and came at once. <- Do not be sad. We will look for it together.>",
          "{H} ran to {F} and told {F.him} everything. <F I will help you. Where did you see it last?>",
          "{F} put a [gentle|soft|friendly] hand on {H.his} shoulder. <- Let us go back the way you came.>"
          if t.people else
          "{F} sat down beside {H}. <- Let us go back the way you came.>")
    t.say("They looked {P.wrong}, but it was not there. They asked {M}. <- I have not seen it, but look slowly and you will see more.>",
          "First they looked {P.wrong}. Nothing! Then they called and searched until the sun was low.",
          "They met {M}. <- Things do not run away. Go back to the place where you stopped.>",
          "They walked the whole way again, step by step, and looked under every leaf.")
    t.say("At last {F} saw something {P.spot}. It was the {O}!",
          "Then {H} saw something {P.spot}. <H Look! There it is!> It was the {O}.",
          "There, {P.spot}, lay the {O}. It was a little dirty, but it was not broken.")
    t.say("{H} hugged {F} and laughed.", "{H} was so happy that {H.he} danced in a circle.",
          "<H Thank you, {F}! Without you I would never have found it.>")
    t.say("From that day on, {H} always put the {O.short} back in its place.",
          "{H} had learned that two pairs of eyes see more than one.",
          "That evening they had [tea|supper|warm milk] together, and the {O} lay safe on the table.",
          "And {H} knew now that a good friend is worth more than any {O.short}.")


FEARS = {
    "the dark": ("{Q.at} it was dark", ["the sun went down", "night came"],
                 "the dark was only the day with its eyes closed"),
    "deep water": ("the stream had become wide and deep", ["the rain had made the stream wide"],
                   "the water carried those who stayed calm"),
    "thunder": ("a storm came over the hills", ["black clouds came", "lightning lit the sky"],
                "thunder was only a big noise"),
    "high places": ("the path went up a steep rock", ["the path became narrow and steep"],
                    "one small step after another leads up every hill"),
}


def afraid(t):
    """The hero fears something and meets it for the sake of a friend."""
    fear = t.rng.choice(sorted(FEARS))
    t.thing("X", fear)
    scene, signs, lesson = FEARS[fear]
    t.friend()
    t.say("There was only one thing that {H} did not like. {H.he} was afraid of {X}.",
          "But {H} had a secret. {H.he} was afraid of {X}.",
          "Everyone thought that {H} feared nothing, but {H.he} was afraid of {X}.")
    t.say("When the others [laughed|played outside], {H} stayed [at home|close to the door].",
          "<H I wish I were brave.>",
          "{H.his} mother told {H.him} not to worry, but it did not help.")
    t.plain_day()
    t.say("{F} did not come home from {Q.the}.",
          "somebody called for help from {Q.the}. It was {F}!",
          "a bird came with bad news. {F} was hurt and sat alone {Q.at}.", join=True)
    t.say("{H} ran outside, but " + t.rng.choice(signs) + ", and {H.his} knees began to shake.",
          "{H} started to run. But " + scene + ", and {H.he} stopped.")
    t.say("<H I cannot do it.> But then {H.he} thought of {F}, all alone.",
          "{H} wanted to turn around. But who else would help {F}?",
          "{H.his} heart beat like a drum. <H {F} needs me.>")
    t.say("{H.he} took a deep breath and went on, one step at a time.",
          "{H.he} closed {H.his} eyes, counted to three, and went on.",
          "{H.he} sang a little song to {H.self}, very softly, and kept going.")
    t.maybe(.6, "It was hard, but with every step it became a little easier.",
            "Nothing bad happened. So {H.he} took one more step, and then another.")
    t.say("At last {H.he} found {F} {Q.spot}. {F.his} foot was caught under a branch.",
          "There was {F}, {Q.spot}, cold and tired.",
          "{F} sat {Q.spot} and could hardly believe it. <F You came! I knew you would come!>")
    t.say("{H} helped {F.him} up, and together they went home.",
          "Together they [pulled and pushed|rested a little], and then they walked home side by side.",
          "{H} put {H.his} own scarf around {F} and led {F.him} home.")
    t.say("<F You are the bravest friend in the world.>",
          "<F Were you not afraid?> {H} smiled. <- I was. But I came anyway.>",
          "Everyone was proud of {H}.")
    t.say("And {H} learned that " + lesson + ".",
          "Since then, {H} has known that being brave does not mean having no fear. It means going on all the same.",
          "{H} was still a little afraid of {X} after that, but never again too afraid to help.")


def sharing(t):
    """Somebody hungry asks for food; sharing pays back in an unexpected way."""
    t.other()
    t.plain_day()
    t.say("{H.his} [mother|grandmother|aunt] gave {H.him} a {D}. <H This is all for me!>",
          "{H} made a {D} all by {H.self}. It smelled wonderful.",
          "{H} won a {D} at the village fair and carried it home with pride.", join=True)
    t.say("{H} sat down {P.at} and wanted to eat.", "{H} looked for a quiet place {P.at}.")
    t.sense()
    t.say("Then {N.a} came by. {N.his} name was {N}, and {N.he} looked thin and tired.",
          "Just then {H} heard a small sound. {P.spotc} sat {N.a} named {N}, who had walked a long way.",
          "A moment later {N.a} named {N} stopped and looked at the {D}.")
    t.say("<N Please, may I have a little? I have not eaten since yesterday.>",
          "<N That smells so good. Could you give me one small bite?>",
          "{N} did not say a word, but {N.his} stomach growled.")
    t.say("{H} held the {D} tightly. <H But it is mine.> Then {H.he} saw the sad look on the face of {N}.",
          "{H} thought for a while. If {H.he} shared, there would be less for {H.him}.",
          "At first {H} wanted to say no. But {H.he} remembered a day when {H.he} had been hungry too.")
    t.say("<H Sit down. There is enough for two.>",
          "So {H.he} divided it into two halves and gave {N} the bigger one.",
          "<H Come here. It tastes better when we eat together.>")
    t.say("They ate and talked, and {N} told {H} stories of faraway lands.",
          "{N} ate slowly and smiled with every bite.",
          "Soon they were laughing like old friends.")
    t.say("Some days later, {H} slipped and fell into [a deep hole|a cold stream|a thorn bush]. Who pulled {H.him} out? It was {N}!",
          "In the winter, when {H.his} own cupboard was empty, {N} knocked at the door with a full basket.",
          "The next morning there was a gift at the door: {D.gift}. It was from {N}.",
          "A week later {H} lost the way in the fog, and it was {N} who led {H.him} home.")
    t.say("<N You helped me when I was hungry. Now I help you.>",
          "<H Thank you, {N}!> They laughed, because now they were even.",
          "{H} was glad that {H.he} had shared.")
    t.say("What you share comes back to you.", "So half a {D.short} had become a whole friendship.",
          "Since that day the two of them have shared everything, and both of them always have enough.",
          "And {H} learned that a shared meal is twice as good.")


def gift(t):
    """The hero makes a gift; it goes wrong, and a new idea saves it."""
    t.friend()
    t.thing("G", *t.rng.choice([
        ("a crown of flowers",), ("a song",), ("a picture",), ("a little boat of bark",),
        ("a necklace of shells",), ("a cake",), ("a lantern of paper",), ("a warm scarf",)]))
    t.say("[Tomorrow was|Soon it would be] {F.his} birthday, and {H} wanted to give {F} something special.",
          "The birthday of {F} was near. <H What can I give {F.him}? I have no money at all.>",
          "{H} wanted to thank {F}, who had always been so good to {H.him}.")
    t.say("{H} asked {M}. <- The best gift is one that you make yourself.>",
          "{H} thought about it all night. In the morning {H.he} had an idea.",
          "{H} went to {P.the} to think. {P.sense} There {H.he} had an idea.")
    t.say("{H.he} would make {G}!", "<H I will make {G}!>")
    t.say("{H.he} worked all day and did not stop to play.",
          "{H.he} looked for everything {H.he} needed {P.at}, and then {H.he} began.",
          "It was not easy. {H.he} had to start again three times.")
    t.say("But just when it was almost done, a gust of wind came and ruined it.",
          "But on the way {H} tripped over a root, and the gift was spoiled.",
          "But in the night it rained through the roof, and in the morning the gift was ruined.")
    t.say("{H} sat down and cried. <H Now I have nothing to give.>",
          "<H All that work for nothing!> {H} was very sad.",
          "{H} looked at what was left and did not know what to do.")
    t.say("{H} went to {F} with empty hands and told {F.him} what had happened.",
          "{F} found {H} there and asked what was wrong. {H} told {F.him} everything.")
    t.say("{F} smiled. <- You worked all day for me? That is the best gift of all.>",
          "<F I do not need a gift. Let us make a new one together.>",
          "{F} laughed and hugged {H}. <- The nicest gift is a friend who thinks of me.>")
    t.say("So they spent the whole day {Q.at} together.",
          "Then they made {G} together, and it was even more beautiful than the first one.",
          "They sat {Q.at} until the stars came out and told each other stories.")
    t.say("It was the best birthday that {F} ever had." if t.flag("birthday") else
          "{F} never forgot that day.",
          "And {H} learned that a gift comes from the heart and not from the hands.",
          "A gift can break, but the love in it cannot.")


def honesty(t):
    """The hero breaks something, hides it, and finally tells the truth."""
    t.thing("B", *t.rng.choice([("blue vase",), ("big clay pot",), ("window",), ("best cup",),
                                ("garden gate",), ("old clock",), ("long ladder",)]))
    t.plain_day()
    t.say("{H} was playing with {H.his} {O} near the house of {M}.",
          "{H} visited {M} and ran around with {H.his} {O}.", join=True)
    t.say("<M Please be careful.> But {H} did not listen.",
          "{H.he} ran faster and faster.", "{H.he} knew that this was not a place to play.")
    t.say("Crash! The {B} was broken.", "There was a loud crack. {H} had broken the {B}.",
          "Then {H.he} bumped into the {B}, and it broke.")
    t.say("Nobody had seen it. {H} hid [behind a bush|behind the door] and held {H.his} breath.",
          "{H} ran away as fast as {H.he} could.",
          "Quickly {H} [covered the pieces with leaves|pushed the pieces under a bench] and went home.")
    t.say("When {M} came back, {M.he} looked very sad. <M Who did this?> {H} looked at the ground. <- It was the wind.>",
          "{M} found the pieces and was sad. <- I wonder who did this.> {H} said nothing.")
    t.say("That night {H} could not sleep. {H.his} stomach hurt, and the moon seemed to look at {H.him}.",
          "At supper {H} could not eat. The lie felt like a stone in {H.his} stomach.",
          "All day long {H} felt bad. Even {H.his} {O} was no fun any more.")
    t.say("{H.his} [grandmother|mother|aunt] saw it. \"A lie grows heavier every day,\" she said. \"The truth is light.\"",
          "<H I have to tell the truth.>",
          "In the morning {H} knew what {H.he} had to do.")
    t.say("{H} went to {M} with a red face. <H I broke the {B}. I am sorry.>",
          "{H} knocked at the door of {M}. <H It was not the wind. It was me. I am very sorry.>")
    t.say("{M} was quiet for a moment. Then {M.he} nodded. <- Thank you for telling me. That was brave.>",
          "<M I am glad that you told me. Everyone makes mistakes, but not everyone is honest.>")
    t.say("{H} helped to repair the {B}, and it took all afternoon.",
          "Together they [glued|mended] it, and {M} [told funny stories|sang an old song] while they worked.",
          "To make it good again, {H} helped {M} for a whole week.")
    t.say("That night {H} slept very well.",
          "{H} felt as light as a feather. The truth may be hard to say, but it is good to have said it.",
          "Since then, {H} has always told the truth, even when it was hard.",
          "And {M} trusted {H} more than ever.")


def stuck(t):
    """A big or proud animal is stuck; the hero frees it and is rescued in turn."""
    t.other()
    t.plain_day()
    t.say("{H} heard a cry from {P.the}. \"Help! Help!\"",
          "{H} was walking {P.at} when {H.he} heard somebody cry for help.", join=True)
    t.say("{H.he} ran to look. There was {N.a} named {N}, stuck [between two rocks|in a thorn bush|in a deep hole|under a heavy branch].",
          "{P.spotc} {H.he} found {N.a} named {N}. {N} was caught in [an old net|a tangle of roots|a heap of branches] and could not move.")
    t.say("<N I have been here since last night. Please help me.>",
          "<N Please do not go away!>", "{N} was cold and afraid.")
    t.say("{H} pulled as hard as {H.he} could, but {N} did not move.",
          "{H} tried to pull {N.him} out, but {H.he} was too small.",
          "First {H} pushed, and then {H.he} pulled. Nothing helped.")
    t.say("<H I have an idea.>",
          "{H} sat down to think. Being strong was no use here. {H.he} needed an idea.",
          "<H If I am not strong enough, I must be clever.>")
    t.say("{H.he} found a long stick and used it as a lever. Slowly, slowly, {N} came free.",
          "{H.he} fetched a rope, tied one end to a tree, and pulled the other end. After a while {N} was free.",
          "{H.he} called all the neighbours. They pulled together, one, two, three, and {N} was free!",
          "Bit by bit {H.he} took the branches away, until {N} could climb out.")
    t.say("<N Thank you! I will never forget this.>",
          "{N} took a deep breath. <- You saved me. One day I will help you too.>")
    t.maybe(.5, "{H} only laughed. <H That is what neighbours are for.>",
            "{H} thought that such a thing would never happen.")
    t.say("When autumn came, there was a great storm, and {H.his} home was full of water. But {N} came and carried {H.his} things to a dry place.",
          "A few weeks later, {H} was lost {Q.at}. It was {N} who found {H.him} and brought {H.him} home.",
          "Not long after, a big wolf chased {H} {Q.inside}. Then {N} jumped out and made such a noise that the wolf ran away.")
    t.say("So {N} had kept the promise.",
          "<H Now you have saved me too!> From then on they were the best of friends.",
          "Nobody is too small to help, and nobody is too big to need help.",
          "And that is how {H} and {N} became friends for life.")


def storm(t):
    """A storm; the hero takes neighbours in although there is little room."""
    t.friend()
    t.other()
    t.plain_day("autumn", "windy", "rainy")
    t.say("the sky became dark, and the wind began to howl.",
          "a great storm came over the land.", join=True)
    t.say("{H} closed the door and made a small fire. It was warm and cosy inside.",
          "{H} was glad to be at home. The soup was hot, and the bed was soft.",
          "{H} lit a candle and listened to the rain on the roof.")
    t.say("Then there was a knock. Outside stood {F}, wet from head to foot. <F My roof is gone. May I come in?>",
          "Knock, knock! It was {F}. <F The wind blew my door away.>")
    t.say("<H Come in! There is room for two.>", "<H Of course. Sit down by the fire.>")
    t.say("Soon there was another knock. It was {N}, {N.a}. <N I am so cold.> {H} looked around. The room was already full.",
          "A little later somebody scratched at the door. {N.a} named {N} stood there and shivered.")
    t.say("<F There is no more room.> But {H} shook {H.his} head. <- We only have to move a little closer.>",
          "{H} thought about it. The room was small, but the storm was big. <H Come in. If we sit close, it will be warmer.>")
    t.say("They shared the soup, and it was just enough.",
          "They sat close together under one blanket and told stories.",
          "{F} sang, {N} told jokes, and {H} cooked some more soup.")
    t.say("All night long the storm shook the walls, but nobody was afraid.",
          "Outside the wind roared. Inside they laughed.")
    t.say("In the morning the sun came out. {H} saw that a tree had fallen on {H.his} garden. <F We will help you.> And they cleaned everything up together.",
          "In the morning the storm was over. They all helped to mend the roof of {F}, and by evening it was as good as new.",
          "The next day the sky was blue. They went from house to house and repaired what was broken.")
    t.say("A small house with an open door is bigger than a castle with a closed one.",
          "{H} never forgot that night, and neither did the others.",
          "Since then, they have met every year on that day to eat soup together.",
          "And {H} learned that there is always room for a friend.")


SKILLS = [
    ("swim", "swam across the pond", "the water", "went under and came up with a mouthful of water"),
    ("whistle", "whistled a whole tune", "the whistling", "blew and blew, but only air came out"),
    ("dance", "danced without one wrong step", "the steps", "stepped on a foot and fell over"),
    ("bake bread", "took a golden loaf out of the oven", "the dough",
     "made a loaf that was as hard as a stone"),
    ("ride a bicycle", "rode all the way down the lane", "the wheels", "wobbled and fell into a bush"),
    ("skate", "skated once around the frozen pond", "the ice", "slipped and sat down hard"),
    ("play the violin", "played a sweet song", "the strings", "made a noise like an angry cat"),
    ("draw", "drew a picture that everyone knew at once", "the pencil",
     "drew a horse that looked like a table"),
    ("juggle", "kept three balls in the air", "the balls", "dropped every ball"),
    ("paint", "painted the whole valley with its river and hills", "the brush",
     "spilled the paint all over the floor"),
]


def skill(t):
    """The hero learns something by trying again and again."""
    verb, success, with_what, failure = t.rng.choice(SKILLS)
    t.thing("V", verb)
    t.friend()
    t.say("There was one thing that {H} wanted more than anything else. {H.he} wanted to learn to {V}.",
          "{H} had one big dream. {H.he} wanted to {V}.",
          "Every day {H} watched the others, because {H.he} could not {V} and wanted to learn it.")
    t.plain_day()
    t.say("{H} decided to try.", "{H} got up early and began.", "{H} made up {H.his} mind to begin.",
          join=True)
    t.say("{H.he} " + failure + ".", "But {H.he} " + failure + ".")
    t.say("Some of the others laughed. {H} went home with hot cheeks.",
          "<H I will never learn it.>", "{H} wanted to give up at once.")
    t.say("{M} had watched {H.him}. <- Nobody can do it on the first day. Try a little every day.>",
          "But {F} did not laugh. <F I needed a whole year to learn it. Come, I will show you.>",
          "{F} sat down beside {H.him}. <- It is all right to fall. You only have to get up once more.>")
    t.say("So {H} practised every morning {P.at}.", "From then on, {H} practised every day {P.at}, in sun and rain.")
    t.say("On Monday {H.he} failed. On Tuesday {H.he} failed again. But on Wednesday it was already a little better.",
          "The first week was hard. The second week was not so hard. In the third week {H.he} began to like it.",
          "Ten times {H.he} failed, and ten times {H.he} tried again.")
    t.maybe(.5, "Slowly " + with_what + " seemed to become {H.his} friend.",
            "{F} came to watch and clapped every time.")
    t.say("Then, one evening, it happened. {H} " + success + "!",
          "And one fine day, {H} " + success + ". {H.he} could hardly believe it.",
          "At the summer feast everyone came to see. {H} took a deep breath and " + success + ".")
    t.say("<F You did it!> {H} laughed and did it again.", "Everyone clapped, and {F} clapped the loudest.",
          "<H I did it! I really did it!>")
    t.say("{H} had learned more than that. {H.he} had learned not to give up.",
          "Now the little ones come to {H} and ask how to do it. And {H} always says, \"Try a little every day.\"",
          "Big things are made of many small tries.",
          "And {H} knew that every master was once a beginner.")


def race(t):
    """A race with a proud rival, who needs help on the way."""
    t.other(proud=True)
    t.thing("R", t.rng.choice(["the silver cup", "a big basket of apples", "a golden medal",
                               "a huge cake"]))
    t.say("Every year there was a race from {P.the} to {Q.the}. The winner got {R}.",
          "Today was the day of the great race from {P.the} to {Q.the}. The prize was {R}.")
    t.say("{N}, {N.a}, was very fast and very proud. <N I will win. Nobody is as fast as I am.>",
          "{N.a} named {N} had won three times already and told everyone about it.")
    t.say("{H} was not the fastest, but {H.he} wanted to try.",
          "<H I will run too.> {N} laughed. <- You? You are much too slow.>",
          "{H.his} friends told {H.him} not to run, but {H.he} only smiled.")
    t.say("One, two, three, go! {N} shot off like an arrow, and {H} was soon far behind.",
          "The bell rang, and they all began to run. {N} was in front, and {H} came last.")
    t.sense()
    if t.rng.random() < .5:
        t.say("{H} did not hurry and did not stop. Step by step {H.he} went on.",
              "{H} kept going at the same speed and looked only at the path.")
        t.say("{N} looked back and saw nobody. <N I have a lot of time.> So {N.he} lay down under a tree and fell asleep.",
              "{N} stopped to pick berries and to talk with the people by the path, because {N.he} felt so sure.")
        t.say("When {N} looked up again, {H} was already close to the end.",
              "Quietly {H} went past. {N} noticed it too late.")
        t.say("{N} ran as fast as the wind, but {H} was the first to reach {Q.the}.",
              "Everyone cheered when {H} came to the end, and {N} was only second.")
        t.say("<N I was proud and foolish. You won fairly.>",
              "{N} was ashamed. But {H} shared the prize with {N.him}.")
        t.say("Slow and steady is sometimes faster than fast.",
              "And {N} never laughed at anyone again.",
              "The one who keeps going gets there in the end.")
    else:
        t.say("But in the middle of the way {N} slipped and hurt a foot.",
              "But at a corner {N} ran too fast and fell into a ditch.")
        t.say("The others ran past and did not stop. Only {H} stopped.",
              "Now {H} could have won. But {H.he} heard {N} cry and turned around.")
        t.say("<H Lean on me. We will go together.>", "<H Give me your hand.>" if t.people else "<H Hold on to me.>")
        t.say("<N Why do you help me? You will lose!> {H} only smiled. <H A race is only a race.>",
              "<N But you could win!> {H} shook {H.his} head. <- I would rather have a friend than a prize.>")
        t.say("They came in last, side by side, but everyone clapped and cheered.",
              "When they came to the end, all the others had been there for a long time. But nobody got as much applause as these two.")
        t.say("The judge gave {H} {R} for the kindest runner.",
              "{M} gave {H} {R}. <M Today the best runner came in last.>")
        t.say("And {N} became a true friend.", "Since that day {N} has not been proud any more.",
              "To help somebody is better than to win.")


def new_friend(t):
    """A shy newcomer and the first step towards a friendship."""
    t.other(shy=True)
    t.say("[One day|One morning|Last spring] a new neighbour moved in. It was {N.a} named {N}.",
          "A new family came to live near {P.the}. They had a child named {N}." if t.people else
          "A new neighbour came to live near {P.the}. It was {N.a} named {N}.")
    t.say("{N} never came out to play. {N.he} only looked out of the window.",
          "{N} always sat alone {P.spot} and did not talk to anyone.",
          "Whenever somebody said hello, {N} ran away.")
    t.say("The others said that {N} was proud.", "\"What a strange one!\" said the others.",
          "Nobody knew what to think of {N.him}.")
    t.say("But {H} thought that perhaps {N} was only shy.",
          "{H} remembered how it felt to be alone.", "<H Maybe {N} does not know how to begin.>")
    t.say("So {H} put a {D} in front of the door and went away.",
          "So {H} sat down not far from {N} and began to play with {H.his} {O}.",
          "So {H} drew a picture of a smiling sun and pushed it under the door.")
    t.say("Nothing happened. The next day {H} did it again, and the day after that too.",
          "On the first day {N} only looked. On the second day {N.he} came a little closer.")
    t.say("On the third day the door opened a little. <N Was that from you?>",
          "On the third day a small voice spoke. <N May I play with you?>",
          "At the end of the week {N} came out. <- Hello.> It was only one word, but it was a beginning.")
    t.say("<H Yes! I am {H}. Would you like to go to {Q.the} with me?>",
          "{H} was so glad. <- Of course! Come, I will show you {Q.the}.>")
    t.sense("Q")
    t.say("They played all afternoon {Q.at}. {N} knew wonderful [games|songs|stories], and {H} laughed until {H.his} belly hurt.",
          "{Q.at}, {N} showed {H} how to [make a boat of leaves|find four-leaf clovers|talk to the birds]. Nobody else could do that.")
    t.say("<N I wanted to play with you all the time, but I did not dare to ask.>",
          "<N At my old home I had no friends. Now I have one.>")
    t.say("Soon all the others came to play too, and {N} was never alone again.",
          "Sometimes a friendship only needs a little patience.",
          "A shy heart is like a snail: if you wait quietly, it comes out.",
          "Since that day the two of them have been together from morning to night.")


GUIDES = [
    ("the evening star", "The star stands above your home."),
    ("the sound of the stream", "The stream runs to the village."),
    ("the smoke above the trees", "Where there is smoke, there is a house."),
    ("the ringing of a bell", "That is the bell of the village."),
    ("a row of white stones", "The stones show the way home."),
]


def lost_way(t):
    """The hero walks too far, is lost, and finds the way home."""
    guide, reason = t.rng.choice(GUIDES)
    t.thing("G", guide)
    t.say("{H.his} mother always told {H.him} not to go too far from home.",
          "Everyone said that nobody should go to {Q.the} alone.")
    t.plain_day("sunny", "spring", "autumn", "foggy")
    t.say("{H} saw a [blue butterfly|golden beetle|white feather in the wind] and ran after it.",
          "{H} wanted to know what was behind {P.the}.",
          "{H} followed a path that {H.he} had never seen before.", join=True)
    t.say("{H.he} went farther and farther. {Q.sense}", "It was so nice that {H.he} did not look back once.")
    t.say("When {H.he} turned around at last, everything looked strange.",
          "Then the sun went down, and {H} did not know the way any more.")
    t.say("<H Which way is home?> Nobody answered.", "<H I am lost!>",
          "{H} called, but only the echo answered.")
    t.say("{H.he} ran to the left and to the right, but that made it worse.",
          "A cold wind blew, and {H} began to cry.", "It was getting dark, and {H} was hungry and tired.")
    t.say("Then {M} came along. <- Do not run. When you are lost, stand still and listen.>",
          "Then {H.he} remembered the words of {M}: when you are lost, stand still and look around.")
    t.say("{H} dried {H.his} tears and stood still. And there was {G}!",
          "{H} became quiet. After a while {H.he} noticed {G}.")
    t.say("<H Of course! " + reason + ">", "\"" + reason[:-1] + ",\" thought {H}.")
    t.say("{H.he} followed {G}, over the hill and through the trees.",
          "Step by step {H.he} went towards home, and {H.his} heart became lighter.")
    t.say("At last {H.he} saw a light in a window. {H.his} mother stood at the door.",
          "And there was home! {H.his} family came running to meet {H.him}.")
    t.say("\"We were so worried!\" said {H.his} mother, and she held {H.him} for a long time.",
          "There was a hot supper on the table, and nobody was angry.")
    t.say("The next time {H} went out, {H.he} looked back often to remember the way.",
          "{H} still loves to explore, but now {H.he} never goes alone.",
          "That night {H} dreamed of {G} and smiled in {H.his} sleep.",
          "And {H} knew that home is the best place of all.")


def seed(t):
    """A seed, impatience, and a plant that becomes something for everyone."""
    plant, fruit = t.rng.choice([("sunflower", "golden seeds for all the birds"),
                                 ("pumpkin", "pumpkin soup for the whole village"),
                                 ("apple tree", "sweet apples for everyone"),
                                 ("strawberry plant", "red berries for all the neighbours"),
                                 ("pear tree", "yellow pears for all the children"),
                                 ("bean plant", "a big pot of beans for everyone")])
    t.thing("S", plant)
    t.friend()
    t.plain_day("spring")
    t.say("{M} gave {H} a tiny seed. <M Take good care of it.>",
          "{H} found a tiny seed {P.at}.", join=True)
    t.say("{H} did not know what it was. {H.he} made a hole in the earth and put the seed inside.",
          "{H} planted it behind the house, where the sun was warm.")
    t.say("The next morning {H.he} ran out to look. There was nothing.",
          "{H.he} sat beside it and waited. Nothing happened.")
    t.say("<H Grow! Please grow!> But the seed did not listen.",
          "<H How long does it take?> {F} laughed. <- Longer than one night.>",
          "{H} wanted to dig it up again, but {F} stopped {H.him}. <F Give it time.>")
    t.say("So {H} gave it water every day and pulled out the weeds.",
          "Every morning {H.he} brought water from the well and sang a little song for the seed.")
    t.say("A week went by, and then another.", "The rain came, and the sun came, and the days became longer.")
    t.say("Then, one morning, a small green leaf looked out of the earth. <H It is alive!>",
          "And one day there was something green, no bigger than a fingernail. {H} jumped for joy.")
    t.maybe(.7, "One night it was very cold. {H} got up and covered the little plant with {H.his} own blanket.",
            "When a hungry snail came, {H} carried it gently to another place.",
            "In the hot summer {H.he} built a little roof of leaves to give it shade.")
    t.say("The plant grew and grew, until it was taller than {H}. It was a {S}!",
          "It became bigger every week. <F Now I see what it is. It is a {S}!>")
    t.say("In the end there was more than enough. {H} invited everyone, and there were " + fruit + "."
          if not fruit.startswith(("pumpkin", "a ")) else
          "In the end there was more than enough. {H} invited everyone, and there was " + fruit + ".")
    t.say("<F It was worth the wait.>", "{H} kept one seed for the next spring.",
          "Everyone praised {H}, but {H.he} only pointed at the sun and the rain.")
    t.say("Good things need time.", "And {H} learned that patience has sweet fruit.",
          "What was once a tiny seed had made the whole neighbourhood happy.")


NOISES = [
    ("a strange scratching", "a kitten that wanted to come in", "small, wet and hungry"),
    ("a deep humming", "a bumblebee caught in an empty jar", "tired from flying against the glass"),
    ("a loud knocking", "a woodpecker that was building a new home", "very proud of the work"),
    ("a strange whistling", "an old bottle with the wind blowing over it", "as green as the grass"),
    ("a soft crying", "a little bird that had fallen from the nest", "afraid and all alone"),
    ("a slow ticking", "an old clock that somebody had thrown away", "dusty but not broken"),
]


def mystery(t):
    """A strange noise in the night turns out to be harmless."""
    noise, cause, look = t.rng.choice(NOISES)
    t.thing("X", noise)
    t.friend()
    t.say("One night {H} woke up. There was {X} outside.",
          "It began on a dark night. {H} lay in bed and heard {X}.")
    t.say("{H.he} pulled the blanket over {H.his} head and waited for the morning.",
          "<H What can that be?> {H.he} did not sleep any more that night.")
    t.say("In the morning {H.he} told {F} about it. <F Perhaps it is a ghost!>",
          "The next day {H.he} told everyone. {M} thought it was the wind, but {F} was not so sure. <F Maybe it is a monster!>")
    t.say("<H There is only one way to find out. We must go and look.>",
          "They were both a little afraid, but they wanted to know.")
    t.say("When it was dark again, they took a lantern and waited. And then they heard {X} again!",
          "That evening they hid near {P.the} and listened. Soon they heard {X} again.")
    t.say("It came from {P.the}. On the tips of their toes they went nearer.",
          "They followed the sound to {P.the}. {P.sense}")
    t.say("Something moved {P.spot}. {F} held {H} tightly. <F Let us go home!>",
          "The sound came from a dark corner {P.at}. {H.his} heart beat fast.")
    t.say("But {H} lifted the lantern and looked. It was " + cause + "!",
          "{H} took one more step, and then {H.he} began to laugh. It was only " + cause + ".")
    t.say("It was " + look + ".")
    t.say("<F And we thought it was a monster!>", "The two friends laughed until they had to sit down.",
          "<H Our monster is not very big.>")
    if "bird" in cause or "kitten" in cause:
        t.say("{H} took it home and gave it a warm place to sleep, and it stayed with them.",
              "They took good care of it until it was strong again.")
    elif "bee" in cause:
        t.say("{H} opened the jar, and the bumblebee flew away into the night.")
    elif "woodpecker" in cause:
        t.say("They wished the woodpecker a good night and promised to visit again.")
    else:
        t.say("{H} took it home, cleaned it, and put it on the shelf.",
              "They kept it to remember that night.")
    t.say("Many things are only frightening until you look at them.",
          "After that, when {H} heard a noise in the night, {H.he} smiled and slept on.",
          "And {H} learned that it is better to look than to worry.")


def quarrel(t):
    """Two friends fight over a thing and make peace."""
    t.friend()
    t.plain_day()
    t.say("{H} and {F} found a {O} {P.at}.", "{M} gave {H} and {F} a {O}.", join=True)
    t.say("<H It is mine! I saw it first!>", "<F I want to have it first.> {H} shook {H.his} head. <- No, me first!>")
    t.say("{H} pulled on one side, and {F} pulled on the other.", "They shouted so loudly that the birds flew away.")
    if t.rng.random() < .5:
        t.thing("E", "it was broken")
        t.say("Then there was a crack, and the {O.short} was broken.",
              "They pulled so hard that the {O.short} broke in two.")
    else:
        t.thing("E", "it was gone")
        t.say("Then the {O.short} flew out of their hands and fell into the deep water."
              if t.people else "Then the {O.short} flew through the air and fell into the deep water.",
              "While they were shouting, a magpie came down and carried the {O.short} away.")
    t.say("<F Now look what you have done!> They turned their backs and went home.",
          "<H I never want to see you again!> And each of them went home alone.")
    t.say("The next day the sun shone, but {H} had nobody to play with.",
          "At home it was very quiet. {H} tried to play alone, but it was no fun.")
    t.say("{H.he} thought about {F}. The {O.short} was not important at all.",
          "{M} saw {H.him} sitting there. <- A {O.short} is easy to find. A friend is not.>")
    t.say("So {H} went to the house of {F}. On the way {H.he} met {F}, who was coming to see {H.him}.",
          "{H} walked to the door of {F}, but before {H.he} could knock, it opened.")
    t.say("<H I am sorry.> And at the same moment {F} said it too. They had to laugh.",
          "<F I am sorry that I shouted.> {H} nodded. <- I am sorry too.>")
    t.say("Together they mended the {O}, and from then on they took turns." if t.bound["E"].name == "it was broken"
          else "Together they made a new {O.short} out of [wood and string|old boxes|paper and glue], and it belonged to both of them.",
          "Then they went to {Q.the} and played as they had always done.")
    t.say("A quarrel is soon over when somebody takes the first step.",
          "They never fought over a {O.short} again.",
          "To say sorry is hard, but it makes the heart light.",
          "And {H} knew that a friend is worth more than any {O.short}.")


JOBS = [
    ("the bridge over the stream had broken", "mend the bridge", "The new bridge was strong and wide."),
    ("a big tree lay across the road", "clear the road", "The road was free again, and there was enough wood for the winter."),
    ("the well had become dirty", "clean the well", "The water was as clear as glass."),
    ("the roof of the school had a big hole", "repair the roof", "Not one drop of rain came through the new roof."),
    ("deep snow covered all the paths", "clear the paths", "Now everyone could visit everyone again."),
]


def together(t):
    """A job that is too big for one is done by all."""
    problem, job, result = t.rng.choice(JOBS)
    t.thing("J", job)
    t.friend()
    t.other()
    t.plain_day(*(("snowy",) if "snow" in problem else ("autumn", "windy")))
    t.say("everyone saw that " + problem + ".", "{H} came with bad news: " + problem + ".", join=True)
    t.say("\"Somebody should do something,\" said the neighbours, and they went home again.",
          "Everyone waited for somebody else to begin.")
    t.say("<H I will {J}.> {H.he} took a [shovel|hammer|rope] and started to work.",
          "{H} thought about it. If nobody began, nothing would ever be done. So {H.he} began to {J}.")
    t.say("\"You are much too small!\" said the others.", "It was hard work, and after an hour {H} had done only a very small part.")
    t.say("{H.his} arms hurt, but {H.he} did not stop.", "{H.he} wiped {H.his} face and went on.")
    t.say("Then {F} came by. <- You cannot do this alone. I will help you.>",
          "{F} watched for a while and then came to help.")
    t.say("Soon {N}, {N.a}, came too. {N} was strong and carried the heavy things.",
          "Then came {N}, {N.a}, who knew how to use the tools.")
    t.say("{M} brought [soup|bread and cheese|hot tea], and even the smallest children carried something.",
          "One after another they came: the baker, the miller, and the shepherd with his dog.")
    t.maybe(.6, "They sang while they worked, and the time flew by.", "Many hands made the work light.")
    t.say("By evening everything was done. " + result)
    t.say("<N Why did we not begin earlier?> {H} laughed. <- Somebody had to be the first.>",
          "In the evening they lit a fire and danced until midnight.",
          "Everyone thanked {H}, but {H.he} pointed at all the others.")
    t.say("What is too big for one is small for many.",
          "It only takes one to begin.", "And {H} learned that help comes to those who begin.")


def treasure(t):
    """A map leads over several stations to an unexpected treasure."""
    t.friend()
    t.plain_day("sunny", "spring", "autumn", "windy")
    t.say("{H} found an old map [in a bottle|behind a loose brick|in a dusty book|under the floor].",
          "{M} gave {H} an old map. <M I am too old for this. Now it is yours.>", join=True)
    t.say("A red cross showed where a treasure lay. {H} ran to {F}. <H Let us find it!>",
          "<H Look, {F}! There is a treasure!> {F} could hardly wait.")
    t.say("They packed a {D} and set out.", "They took a rope, a lantern and something to eat.")
    t.say("First the map led them to {P.the}. {P.sense}", "The first sign was {P.at}. {P.sense}")
    t.say("{P.spotc} they found a stone with an arrow on it.",
          "There they had to count twenty steps to the left. {P.spotc} they found a second sign.")
    t.say("Then it began to rain, and {F} wanted to turn back. <H Only a little farther!>",
          "The way was long, and {F} became tired. So they rested and shared what they had.",
          "A deep ditch lay across the path. They used a fallen tree as a bridge and held on to each other.")
    t.say("The arrow pointed to {Q.the}. {Q.sense}", "At last they came to {Q.the}.")
    t.say("{Q.spotc} they began to dig. Soon they hit something hard. It was a wooden box!",
          "{Q.spotc} stood an old box, just as the map had shown.")
    t.say("Was it full of gold? {H} opened it slowly. Inside lay [a bundle of letters|an old picture of two friends|two small cups|a book full of stories] and a note.",
          "With shaking hands they opened it. There was no gold in it, only a piece of paper.")
    t.say("The note said: The real treasure is the one who walked here with you.",
          "On the paper was written: Whoever comes here together has already found the treasure.")
    t.say("{H} and {F} looked at each other and smiled.", "First {F} was a little sad. Then they both began to laugh.")
    t.say("They put the box back for the next ones to find, and they went home arm in arm." if t.people else
          "They put the box back for the next ones to find, and they went home side by side.",
          "All the way home they talked about what they had seen. It had been the best day of the year.",
          "They kept the map for ever, and whenever they looked at it, they remembered that day.")


def star(t):
    """A fallen star (or a little cloud) has to go back to the sky."""
    what, noise = t.rng.choice([("star", "It shone with a weak light."),
                                ("cloud", "It was soft and white and no bigger than a pillow."),
                                ("moonbeam", "It was thin and silver.")])
    t.thing("S", what)
    t.friend()
    t.say("One clear night {H} could not sleep and looked out at the sky. Suddenly something fell down near {P.the}.",
          "One evening {H} saw something bright fall from the sky. It came down near {P.the}.")
    t.say("{H} ran to look. {P.spotc} lay a little {S}. " + noise,
          "{H.he} put on {H.his} shoes and went out. {P.spotc} {H.he} found a little {S}. " + noise
          if t.people else
          "{H.he} went out at once. {P.spotc} {H.he} found a little {S}. " + noise)
    t.say("\"I fell down because I was not careful,\" said the {S}. \"Now I cannot get home.\"",
          "\"Please help me,\" whispered the {S}. \"I must be back in the sky before the morning.\"")
    t.say("{H} carried the {S} home in both hands and woke {F}." if t.people else
          "{H} carried the {S} home very carefully and woke {F}.",
          "{H} called {F}, and together they thought about what to do.")
    t.say("They climbed the tallest tree, but the sky was still too far away.",
          "They threw it up into the air, but it always fell down again.",
          "They built a tower of boxes, but it was not high enough.")
    t.say("The {S} became weaker and weaker.", "\"It is no use,\" said the {S} sadly.")
    t.say("They asked {M}. <- What is light goes up when the heart is light. Make it laugh!>",
          "Then {F} had an idea. <- It is too sad to fly. We must make it happy!>")
    t.say("So {H} told the funniest story that {H.he} knew, and {F} danced like a goose.",
          "So they sang a silly song and made funny faces.")
    t.say("The {S} began to giggle. It giggled more and more, and slowly it rose into the air.",
          "First the {S} smiled, and then it laughed. And with every laugh it flew a little higher.")
    t.say("\"Thank you!\" it called. \"I will never forget you!\"",
          "Higher and higher it went, until it was back in its place.")
    t.say("Every night since then, {H} looks up at the sky, and one small light winks back.",
          "And when {H} is sad, {H.he} looks up and remembers that laughing makes the heart light.",
          "If you look up tonight, you may see it smile.")


def errand(t):
    """The hero is sent on an errand and forgets it by doing good deeds; they pay back."""
    t.other()
    t.plain_day("sunny", "spring", "autumn", "windy")
    t.say("{H.his} grandmother sent {H.him} to the market to buy a {D}. <H I will be back soon.>",
          "{H.his} mother gave {H.him} three coins for a {D}. \"Go straight to the market,\" she said.", join=True)
    t.say("On the way {H} met {N.a} named {N}, who was crying. <N I have lost my money, and my little ones are hungry.>",
          "By the road sat {N.a} named {N}. <N My cart is broken, and I cannot pay for a new wheel.>")
    t.say("{H} looked at the coins. Then {H.he} gave them all to {N}.",
          "{H} thought for a moment and put the coins in front of {N}. <H You need them more than I do.>")
    t.say("Now {H.he} had no money, but {H.he} went on to the market all the same.",
          "<N Thank you! I will not forget it.> {H} walked on without a coin.")
    t.say("At the market it was loud and bright. {H} saw {M} with a heavy bag. <H May I help you?>",
          "There {H} saw how {M} dropped a basket of eggs and apples. {H.he} quickly helped to pick everything up.")
    t.say("<M How kind you are! Here, take this.> And {M} gave {H.him} a {D}.",
          "{M} was so glad that {M.he} gave {H.him} a {D} as a present.")
    t.say("{H} could hardly believe it. That was just what {H.he} had come for.",
          "{H} laughed out loud and ran all the way home.")
    t.say("At home {H.he} told the whole story.", "\"And the coins?\" asked the others at home. {H} told them everything.")
    t.say("That evening there was a knock at the door. It was {N}, who brought the three coins back, and a flower too."
          if t.rng.random() < .5 else
          "\"You gave away three coins and came home with more,\" said {H.his} grandmother, and she kissed {H.him}.")
    t.say("A good deed is never lost.", "Kindness is a coin that always comes back.",
          "They ate the {D} together, and it had never tasted so good.")


def grumpy(t):
    """A grumpy character is cheered up by the hero's patience."""
    t.other(grumpy=True)
    t.friend()
    t.say("Near {P.the} lived {N}, {N.a}. Nobody ever saw {N.him} smile.",
          "{N}, {N.a}, lived near {P.the} and was angry all the time. <N Go away!>")
    t.say("The others were afraid of {N} and made a wide circle around the house.",
          "<F Do not go there. {N} is mean.>")
    t.say("But {H} wondered why {N} was so angry.", "{H} did not believe that anyone could be angry for no reason.")
    t.plain_day()
    t.say("{H} knocked at {N.his} door and said good morning.",
          "{H} took a {D} and went to visit {N}.", join=True)
    t.say("<N What do you want? Leave me alone!> And the door was shut with a bang.",
          "<N I do not like visitors.> {H} put the {D} on the step and left.")
    t.say("The next day {H} came again, and the day after that too.", "{H} was not angry. The next morning {H.he} came back.")
    t.say("At last {N} opened the door and sighed. <- My [back|foot|tooth] hurts so much that I cannot sleep.>",
          "Then {H} saw that {N} was crying. <N Today is my birthday, and nobody has ever come.>",
          "At last {N} spoke in a low voice. <- I have forgotten how to be friendly.>")
    t.say("<H Why did you not say so? I will help you.>", "{H} sat down beside {N.him} and listened.")
    t.say("{H} brought [warm tea|soft pillows|fresh flowers] and called {F}, and they stayed until evening.",
          "{H} told the others about it. They all came with [songs and cakes|flowers and music].")
    t.say("And then something happened that nobody had ever seen. {N} smiled!",
          "{N} wiped {N.his} eyes and laughed, first a little, and then so loudly that the windows shook.")
    t.say("<N Thank you for coming back.>", "<N I was not angry with you. I was only alone.>")
    t.say("Since then the door near {P.the} has always been open.",
          "Behind a hard shell there is often a soft heart.",
          "And {H} learned that one should ask before one judges.")


PLOTS = {
    "lost_object": lost_object, "afraid": afraid, "sharing": sharing, "gift": gift,
    "honesty": honesty, "stuck": stuck, "storm": storm, "skill": skill, "race": race,
    "new_friend": new_friend, "lost_way": lost_way, "seed": seed, "mystery": mystery,
    "quarrel": quarrel, "together": together, "treasure": treasure, "star": star,
    "errand": errand, "grumpy": grumpy,
}
