"""Long prompts: pages of Python's reference with the task to summarise them."""

import re
from pydoc_data.topics import topics

PAGES = 112
# Characters, of which a token of smollm2 has 3.3 to 5.5: 1 to 4 thousand tokens.
LENGTHS = (6000, 11000, 7500, 14200, 6800, 9000)
REACH = 5  # pages after a page that may share text with it
TASK = "\n\nSummarize the text above in a few sentences."


def reference() -> dict[str, str]:
    """Return the reference's paragraphs in order, each with the first topic that has it: topics repeat each other."""
    topic_of: dict[str, str] = {}
    for topic, text in sorted(topics.items()):
        for paragraph in re.split(r"\n\n+", text.strip()):
            topic_of.setdefault(paragraph, topic)
    return topic_of


def documents() -> list[tuple[str, str]]:
    """Return a topic and a task for each page, in the order of the reference.

    Pages begin at equal distances, at the end of a paragraph, and have different lengths, so that neighbours share
    text: the reference is too short for so many of them otherwise.
    """
    topic_of = reference()
    whole = "\n\n".join(topic_of)
    pages, last = [], len(whole) - max(LENGTHS)
    for number in range(PAGES):
        start = whole.index("\n\n", last * number // PAGES) + 2
        topic = topic_of[whole[start:].partition("\n\n")[0]]
        page = whole[start : start + LENGTHS[number % len(LENGTHS)]].rpartition("\n")[0]
        pages.append((topic, page + TASK))
    return pages
