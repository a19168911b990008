"""The word lists that tasks draw from; each task keeps the words that the tokenizer can use."""

NAMES = (
    "Aaron Adam Alan Albert Alex Alice Amanda Amy Andrea Andrew Angela Anna Anne Anthony Arthur "
    "Ashley Ben Benjamin Blake Bob Brandon Brian Bruce Carl Carlos Charles Charlie Chris Christian "
    "Christina Claire Craig Crystal Dan Daniel Dave David Dean Diana Donald Dylan Edward Elizabeth "
    "Ellen Emily Emma Eric Erin Ethan Eva Evan Frank Fred Gary George Graham Grant Greg Hannah "
    "Harry Helen Henry Ian Jack Jackson Jacob Jake James Jamie Jane Jason Jay Jeff Jennifer "
    "Jeremy Jerry Jesse Jessica Jim Jimmy Joe John Johnny Jonathan Jordan Joseph Josh Joshua Juan "
    "Julia Julie Justin Karen Kate Katie Keith Kelly Ken Kevin Kim Kyle Laura Lauren Lee Leon "
    "Lewis Lily Linda Lisa Louis Lucas Lucy Luis Luke Marcus Maria Marie Mark Martin Mary Matt "
    "Matthew Max Michael Michelle Mike Morgan Nathan Neil Nicholas Nick Oliver Oscar Patrick Paul "
    "Peter Philip Rachel Ralph Ray Rebecca Richard Rob Robert Roger Ron Rose Roy Russell Ruth Ryan "
    "Sam Samantha Samuel Sara Sarah Scott Sean Simon Sophie Stephanie Stephen Steve Steven Stuart "
    "Sue Susan Taylor Thomas Tim Todd Tom Tony Tyler Victor Victoria Vincent Walter Warren Wayne "
    "William Zach"
).split()

PLACES = (
    "store garden restaurant school hospital office house station park market library museum "
    "beach farm hotel church river bank"
).split()

OBJECTS = (
    "ring bone basketball computer necklace drink snack book ball letter key cup hat toy "
    "flower card present"
).split()

# Events that can last for years, for "The ... lasted from the year ...".
EVENTS = (
    "war siege famine plague conflict campaign drought dispute rebellion revolution strike "
    "expedition journey voyage tour alliance partnership truce treaty marriage friendship feud "
    "romance affair apprenticeship career tenure reign regime dynasty monarchy occupation "
    "blockade boycott embargo ban exile captivity imprisonment sentence trial investigation "
    "inquiry debate negotiation contract lease project program construction repair renovation "
    "restoration excavation exploration settlement migration pilgrimage crusade mission "
    "struggle crisis depression recession inflation epidemic illness recovery "
    "experiment study survey research competition tournament festival "
    "exhibition series collaboration cooperation domination decline growth "
    "expansion invasion resistance uprising unrest turmoil peace"
).split()

# Names that programmers give to arguments.
ARGUMENTS = (
    "data name file value test new result line user key default request path output node item "
    "url model response text version function log string field start number values sub index "
    "error current context image message check create size event state row parser end files "
    "form query fields instance label run action target array code num table source config "
    "first required options update module status group content client results last read "
    "command base format color settings order found count match tag title parent call session "
    "token server host date description mode expected project info valid page header option "
    "task shape load names port old resource root"
).split()

# Plain nouns for the descriptions in a docstring.
NOUNS = (
    "price control cost issue process position course minute education research subject girl "
    "age father force act matter health street patient class mind church condition paper bank "
    "century section activity building sense staff team student language town plan management "
    "morning committee product practice evidence ground letter foot boy back game food union "
    "role land art support range stage trade voice arm club history material care manager "
    "record example training window air difference light university relationship security rest "
    "board statement award love island skin piece oil column crime population dark unit horse "
    "river garden winter summer music bread table chair stone"
).split()
