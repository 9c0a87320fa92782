"""The unit words of MathQA, as Qwen2.5-Math, AReaL and understand-r1-zero use them: in this order, then with an "s".

They are data of the graders reference (appendix); kmph and sec occur twice there too.
"""

_WORDS = (
    "east|degree|mph|kmph|ft|m sqaure| m east|sq m|deg|mile|q .|monkey|prime|ratio|profit of rs|rd|o|gm|"
    "p . m|lb|tile|per|dm|lt|gain|ab|way|west|a .|b .|c .|d .|e .|f .|g .|"
    "h .|t|a|h|no change|men|soldier|pie|bc|excess|st|inches|noon|percent|by|gal|kmh|c|acre|rise|a . m|"
    "th|π r 2|sq|mark|l|toy|coin|sq . m|gallon|° f|profit|minw|yr|women|feet|"
    "am|pm|hr|cu cm|square|v â € ™|are|rupee|rounds|cubic|cc|mtr|s|ohm|number|kmph|day|hour|minute|min|"
    "second|man|woman|sec|cube|mt|sq inch|mp|∏ cm ³|hectare|more|sec|unit|"
    "cu . m|cm 2|rs .|rs|kg|g|month|km|m|cm|mm|apple|liter|loss|yard|pure|year|increase|decrease|d|less|"
    "Surface|litre|pi sq m|s .|metre|meter|inch"
)
SINGULAR = tuple(_WORDS.split("|"))
UNITS = (*SINGULAR, *(word + "s" for word in SINGULAR))
