"""Adjectives and nouns for the keys of needles: 80 of each, 6,400 keys."""

_ADJECTIVES = """
able amber ancient bitter blunt bold brave brief bright broad calm careful clever cloudy cold cosy
crisp curious dark deep dim dry dusty eager early empty faint fancy fast firm fresh gentle giant
glad golden grand happy hasty heavy hollow humble icy idle jolly keen kind late light lively loud
lucky mellow mild narrow neat noble odd pale plain polite proud quick quiet rapid rare rough round
rusty salty shy silent slow smooth steady sturdy tidy tiny vivid warm wide
"""
_NOUNS = """
acorn anchor arrow badge barrel basket beacon bell blanket bottle bridge bucket button cabin candle
canoe carpet castle cellar chimney circle cliff clock cloud compass copper corner cottage cradle
crane curtain desert drum eagle engine feather fence ferry forest fountain garden glacier goose
hammer harbour hinge island jacket jar kettle ladder lantern meadow mirror mountain nettle orchard
oven paddle pebble pencil piano pillow pocket quarry ribbon river saddle sparrow spoon station
sweater table teapot thimble tower tunnel valley wagon whistle
"""

ADJECTIVES, NOUNS = tuple(_ADJECTIVES.split()), tuple(_NOUNS.split())
