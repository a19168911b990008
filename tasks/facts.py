"""The data of the question tasks: word forms, categories, uses, places, facts."""


def _table(text: str) -> dict[str, str]:
    """`_table("hot-cold big-small")` is {"hot": "cold", "big": "small"}."""
    pairs = (pair.partition("-") for pair in text.split())
    return {left: right for left, _, right in pairs}


PAST = _table(
    "walk-walked jump-jumped play-played talk-talked look-looked help-helped ask-asked "
    "call-called work-worked open-opened close-closed start-started end-ended turn-turned "
    "move-moved live-lived love-loved like-liked want-wanted need-needed use-used try-tried "
    "cry-cried carry-carried stop-stopped plan-planned wait-waited watch-watched wash-washed "
    "push-pushed pull-pulled cook-cooked clean-cleaned paint-painted visit-visited "
    "answer-answered listen-listened learn-learned smile-smiled laugh-laughed dance-danced "
    "go-went see-saw eat-ate come-came take-took give-gave make-made know-knew think-thought "
    "find-found tell-told say-said feel-felt leave-left bring-brought begin-began keep-kept "
    "hold-held write-wrote stand-stood hear-heard meet-met run-ran sit-sat speak-spoke "
    "lose-lost pay-paid send-sent build-built fall-fell buy-bought sell-sold teach-taught "
    "catch-caught win-won drive-drove break-broke fly-flew draw-drew grow-grew sing-sang "
    "swim-swam drink-drank choose-chose wear-wore sleep-slept forget-forgot"
)

PLURAL = _table(
    "cat-cats dog-dogs book-books car-cars house-houses tree-trees bird-birds table-tables "
    "chair-chairs door-doors window-windows school-schools teacher-teachers student-students "
    "friend-friends hand-hands eye-eyes day-days year-years word-words letter-letters "
    "king-kings queen-queens horse-horses cow-cows apple-apples river-rivers road-roads "
    "city-cities baby-babies story-stories party-parties country-countries family-families "
    "box-boxes fox-foxes bus-buses class-classes glass-glasses dish-dishes watch-watches "
    "church-churches potato-potatoes tomato-tomatoes knife-knives wife-wives life-lives "
    "leaf-leaves wolf-wolves child-children man-men woman-women foot-feet tooth-teeth "
    "mouse-mice goose-geese person-people key-keys picture-pictures cabinet-cabinets "
    "doctor-doctors author-authors painting-paintings farmer-farmers"
)

# People and animals that can do the things below.
ACTORS = (
    "dog cat bird horse boy girl man woman teacher doctor farmer king queen child student baby"
).split()
DEEDS = "swim run jump dance sing walk sleep eat read write play talk cook drive climb wait".split()
MODALS = "will should must could may might".split()

# Subjects and distractors for agreement, with the words between them.
LINKS = ("near the", "next to the", "behind the", "with the", "from the")

CATEGORIES = {
    "an animal": "dog cat horse cow pig sheep lion tiger bear wolf rabbit mouse".split(),
    "a fruit": "apple banana orange grape lemon peach pear cherry mango melon".split(),
    "a color": "red blue green yellow black white brown pink purple gray".split(),
    "a vehicle": "car bus train truck bike boat plane ship taxi tractor".split(),
    "a job": "doctor teacher farmer lawyer nurse pilot baker judge actor waiter".split(),
    "a drink": "water milk tea coffee juice wine beer soda".split(),
    "a tool": "hammer saw drill shovel rake wrench axe knife".split(),
    "a season": "spring summer autumn winter".split(),
    "a month": "March April June July August October November December".split(),
    "a metal": "iron gold silver copper steel tin lead zinc".split(),
    "a shape": "circle square triangle star cube cone oval".split(),
    "a sport": "soccer tennis golf hockey baseball rugby boxing".split(),
}

USES = {
    "cut paper": "scissors",
    "write a letter": "pen",
    "open a lock": "key",
    "eat soup": "spoon",
    "tell the time": "clock",
    "dry your hands": "towel",
    "sweep the floor": "broom",
    "take a picture": "camera",
    "hit a nail": "hammer",
    "light a room": "lamp",
    "carry your books": "bag",
    "drink tea": "cup",
    "call a friend": "phone",
    "see the stars": "telescope",
    "clean your teeth": "toothbrush",
    "climb a wall": "ladder",
    "stay dry in the rain": "umbrella",
    "find your way": "map",
    "dig a hole": "shovel",
    "cook an egg": "pan",
}

PLACES = {
    "a cow": "farm",
    "a doctor": "hospital",
    "a teacher": "school",
    "a lion": "zoo",
    "a whale": "ocean",
    "a plane": "airport",
    "a train": "station",
    "a painting": "museum",
    "a movie": "theater",
    "a judge": "court",
    "a pillow": "bedroom",
    "a stove": "kitchen",
    "a tent": "camp",
    "a cloud": "sky",
    "a camel": "desert",
    "a deer": "forest",
    "a novel": "library",
    "a loaf": "bakery",
    "a priest": "church",
    "a coin": "bank",
}

# Options of common_sense that would also be right, or that one could argue for.
ALSO_RIGHT = {
    "a color": "orange peach cherry lemon gold silver copper lead wine".split(),
    "a tool": "plane iron".split(),
    "tell the time": ["phone"],
    "take a picture": ["phone"],
    "light a room": ["phone"],
    "find your way": ["phone", "key"],
    "eat soup": ["cup", "pan"],
    "cook an egg": ["spoon"],
    "a cow": ["zoo"],
    "a doctor": ["school", "court", "camp"],
    "a teacher": ["library", "museum", "camp", "church"],
    "a lion": ["desert", "forest"],
    "a whale": ["museum", "zoo"],
    "a plane": ["sky", "museum"],
    "a train": ["museum"],
    "a painting": "school court bedroom theater church library bank hospital".split(),
    "a movie": ["museum", "library"],
    "a pillow": ["camp", "hospital"],
    "a stove": ["camp", "bakery"],
    "a tent": ["desert", "forest"],
    "a camel": ["zoo", "farm"],
    "a deer": ["zoo", "farm"],
    "a novel": ["bedroom", "school", "museum"],
    "a loaf": ["kitchen"],
    "a priest": ["hospital", "school"],
    "a coin": ["museum"],
}

CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "England": "London",
    "Russia": "Moscow",
    "China": "Beijing",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Greece": "Athens",
    "Austria": "Vienna",
    "Poland": "Warsaw",
    "Sweden": "Stockholm",
    "Norway": "Oslo",
    "Denmark": "Copenhagen",
    "Finland": "Helsinki",
    "Ireland": "Dublin",
    "Portugal": "Lisbon",
    "Hungary": "Budapest",
    "Cuba": "Havana",
    "Canada": "Ottawa",
    "Peru": "Lima",
    "Chile": "Santiago",
    "Kenya": "Nairobi",
    "Iran": "Tehran",
    "Iraq": "Baghdad",
    "Thailand": "Bangkok",
    "Belgium": "Brussels",
}

OPPOSITES = _table(
    "hot-cold big-small old-young fast-slow up-down left-right day-night black-white "
    "happy-sad open-closed high-low long-short rich-poor strong-weak light-dark early-late "
    "full-empty good-bad hard-soft wet-dry loud-quiet clean-dirty true-false first-last "
    "near-far thick-thin love-hate win-lose start-end push-pull"
)

LANGUAGES = {
    "France": "French",
    "Germany": "German",
    "Italy": "Italian",
    "Spain": "Spanish",
    "England": "English",
    "Russia": "Russian",
    "China": "Chinese",
    "Japan": "Japanese",
    "Greece": "Greek",
    "Poland": "Polish",
    "Sweden": "Swedish",
    "Portugal": "Portuguese",
}

YOUNG = {
    "dog": "puppy",
    "cat": "kitten",
    "cow": "calf",
    "sheep": "lamb",
    "bear": "cub",
    "horse": "foal",
    "duck": "duckling",
    "goat": "kid",
}

HUES = {
    "a banana": "yellow",
    "grass": "green",
    "snow": "white",
    "blood": "red",
    "coal": "black",
    "the sky": "blue",
    "an orange": "orange",
    "chocolate": "brown",
}

# Relation -> (facts, wordings of its question).
RELATIONS = {
    "capital": (
        CAPITALS,
        (
            "What is the capital of {}?",
            "Which city is the capital of {}?",
            "What is the name of the capital city of {}?",
            "The capital of {} is which city?",
        ),
    ),
    "opposite": (
        OPPOSITES,
        (
            "What is the opposite of {}?",
            "Which word means the opposite of {}?",
            "What word is the opposite of the word {}?",
            "The opposite of {} is which word?",
        ),
    ),
    "language": (
        LANGUAGES,
        (
            "What language is spoken in {}?",
            "Which language do people speak in {}?",
            "What is the main language of {}?",
            "People in {} speak which language?",
        ),
    ),
    "young": (
        YOUNG,
        (
            "What is a young {} called?",
            "What is the name for a baby {}?",
            "What do you call a young {}?",
            "A young {} is called what?",
        ),
    ),
    "color": (
        HUES,
        (
            "What color is {}?",
            "What is the color of {}?",
            "Which color does {} have?",
            "The color of {} is what?",
        ),
    ),
}

SURNAMES = (
    "Adams Allen Baker Bell Bennett Black Brooks Brown Bush Butler Carter Clark Collins Cook "
    "Cooper Cox Davis Evans Fisher Foster Fox Green Hall Harris Hill Howard Hughes Hunter Johnson "
    "Jones King Lake Long Mason Miller Mitchell Moore Murphy Parker Perry Phillips Porter Powell "
    "Price Reed Rice Rogers Smith Snow Stone Thompson Turner Walker Ward Watson White Williams "
    "Wilson Wolf Wood Wright Young"
).split()
TITLES = "Captain Coach Colonel Doctor General Judge Lady Lord Major Pastor Professor Sir".split()
THINGS = (
    "ball book cup hat key lamp map pen ring bag box coat drum flag kite phone rope shoe toy watch"
).split()
COLORS = CATEGORIES["a color"]
COUNTED = "apples books coins cards cookies balls pens eggs stamps shells toys cups".split()

# (comparative, its opposite, superlative, the opposite's superlative)
COMPARISONS = (
    ("taller", "shorter", "tallest", "shortest"),
    ("older", "younger", "oldest", "youngest"),
    ("faster", "slower", "fastest", "slowest"),
    ("stronger", "weaker", "strongest", "weakest"),
    ("richer", "poorer", "richest", "poorest"),
)
