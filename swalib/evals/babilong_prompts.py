"""How BABILong asks: the released wording of qa1 to qa5, quoted (Kuratov et al. 2024, arXiv 2406.10149).

The wording is that of the authors' repository (booydar/babilong, babilong/prompts.py, commit ffa075f,
Apache-2.0), to the character: blank lines between the parts, and no space before "You need" in qa2. An
earlier release (commit 1d9718c) joins the parts by single line breaks, and one worked example of its qa3
answers another question than it asks. lm-eval's port has other parts: no tags around the context, and the
post-prompt before the examples.
"""

from __future__ import annotations

from typing import NamedTuple

_HIDDEN = "hidden in some random text and a question."
_BASED = "You need to answer the question based only on the information from the facts."
_FACTS_ABOUT = f"{_HIDDEN} {_BASED}"
_CARRIED = (
    "\nIf a person got an item in the first location and travelled to the second location the item is also "
    "in the second location. If a person dropped an item in the first location and moved to the second "
    "location the item remains in the first location."
)
_NOTHING_ELSE = "Do not write anything else after that."


class Wording(NamedTuple):
    """instruction, worked examples as (story and question, answer), and what stands after them. gap: between
    the examples. answer: the form that the examples answer in, made of the question's words and
    the label."""

    instruction: str
    examples: tuple[tuple[str, str], ...]
    post_prompt: str
    answer: str = "{label}"
    gap: str = "\n"

    def prompt(self, context: str, question: str) -> str:
        """The whole prompt."""
        examples = self.gap.join(
            f"<example>\n{told}\nAnswer: {answer}\n</example>" for told, answer in self.examples
        )
        return (
            f"{self.instruction}\n\n{examples}\n\n{self.post_prompt}\n\n<context>\n{context}\n</context>\n\n"
            f"Question: {question}"
        )


WORDINGS = {
    "qa1": Wording(
        f"I will give you context with the facts about positions of different persons {_FACTS_ABOUT} If a "
        "person was in different locations, use the latest location to answer the question.",
        (
            (
                "Charlie went to the hallway. Judith come back to the kitchen. Charlie travelled to balcony. "
                "Where is Charlie?",
                "The most recent location of Charlie is balcony.",
            ),
            (
                "Alan moved to the garage. Charlie went to the beach. Alan went to the shop. Rouse travelled "
                "to balcony. Where is Alan?",
                "The most recent location of Alan is shop.",
            ),
        ),
        "Always return your answer in the following format: The most recent location of ’person’ is "
        f"’location’. {_NOTHING_ELSE}",
        "The most recent location of {asked[2]} is {label}.",
        "\n\n",
    ),
    "qa2": Wording(
        "I give you context with the facts about locations and actions of different persons "
        f"{_HIDDEN}{_BASED}{_CARRIED}",
        (
            (
                "Charlie went to the kitchen. Charlie got a bottle. Charlie moved to the balcony. Where is "
                "the bottle?",
                "The bottle is in the balcony.",
            ),
            (
                "Alan moved to the garage. Alan got a screw driver. Alan moved to the kitchen. Where is the "
                "screw driver?",
                "The screw driver is in the kitchen.",
            ),
        ),
        f"Always return your answer in the following format: The ’item’ is in ’location’. {_NOTHING_ELSE}",
        "The {asked[3]} is in the {label}.",
    ),
    "qa3": Wording(
        f"I give you context with the facts about locations and actions of different persons {_FACTS_ABOUT}"
        + _CARRIED,
        (
            (
                "John journeyed to the bedroom. Mary grabbed the apple. Mary went back to the bathroom. "
                "Daniel journeyed to the bedroom. Daniel moved to the garden. Mary travelled to the kitchen. "
                "Where was the apple before the kitchen?",
                "Before the kitchen the apple was in the bathroom.",
            ),
            (
                "John went back to the bedroom. John went back to the garden. John went back to the kitchen. "
                "Sandra took the football. Sandra travelled to the garden. Sandra journeyed to the bedroom. "
                "Where was the football before the bedroom?",
                "Before the bedroom the football was in the garden.",
            ),
        ),
        "Always return your answer in the following format: Before the $location_1$ the $item$ was in the "
        f"$location_2$. {_NOTHING_ELSE}",
        "Before the {asked[6]} the {asked[3]} was in the {label}.",
    ),
    "qa4": Wording(
        "I will give you context with the facts about different people, their location and actions, "
        + _FACTS_ABOUT,
        (
            (
                "The hallway is south of the kitchen. The bedroom is north of the kitchen. What is the "
                "kitchen south of?",
                "bedroom",
            ),
            (
                "The garden is west of the bedroom. The bedroom is west of the kitchen. What is west of the "
                "bedroom?",
                "garden",
            ),
        ),
        f"Your answer should contain only one word - location. {_NOTHING_ELSE}",
    ),
    "qa5": Wording(
        f"I will give you context with the facts about locations and their relations {_FACTS_ABOUT}",
        (
            (
                "Mary picked up the apple there. Mary gave the apple to Fred. Mary moved to the bedroom. "
                "Bill took the milk there. Who did Mary give the apple to?",
                "Fred",
            ),
            (
                "Jeff took the football there. Jeff passed the football to Fred. Jeff got the milk there. "
                "Bill travelled to the bedroom. Who gave the football?",
                "Jeff",
            ),
            (
                "Fred picked up the apple there. Fred handed the apple to Bill. Bill journeyed to the "
                "bedroom. Jeff went back to the garden. What did Fred give to Bill?",
                "apple",
            ),
        ),
        f"Your answer should contain only one word. {_NOTHING_ELSE} Do not explain your answer.",
    ),
}
