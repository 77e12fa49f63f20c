"""Long prompts: pages of Python's reference with the task to summarise them."""

import re
from pydoc_data.topics import topics

PAGES = 112
# Characters, of which a token of smollm2 has 3.3 to 5.5: 1 to 4 thousand tokens.
LENGTHS = (6000, 11000, 7500, 14200, 6800, 9000)
REACH = 5  # pages after a page that may share text with it


def documents() -> list[tuple[str, str]]:
    """Return a topic and a task for each page, in the order of the reference.

    Pages begin at equal distances, at the end of a paragraph, and have different lengths, so that neighbours share
    text: the reference is too short for so many of them otherwise. A paragraph of several topics appears only in the
    first of them.
    """
    topic_of: dict[str, str] = {}
    for topic, text in sorted(topics.items()):
        for paragraph in re.split(r"\n\n+", text.strip()):
            topic_of.setdefault(paragraph, topic)
    reference = "\n\n".join(topic_of)
    pages, last = [], len(reference) - max(LENGTHS)
    for number in range(PAGES):
        start = reference.index("\n\n", last * number // PAGES) + 2
        topic = topic_of[reference[start:].partition("\n\n")[0]]
        page = reference[start : start + LENGTHS[number % len(LENGTHS)]].rpartition("\n")[0]
        pages.append((topic, f"{page}\n\nSummarize the text above in a few sentences."))
    return pages
