"""Sentences, words and typed numbers of a Markdown page.

Prose is what is left without rendered parts, code, tables, headings, pictures and footers (`<sub>`). A paragraph or an
item of a list is one block. A sentence ends at `.`, `!` or `?` before a space (except in "e.g." and its like), or with
its block. A code span and a list of names (three or more, of at most two words each) are one word.
"""

import re

from pipelines.docs.pages import RENDERED

FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
FOOTER = re.compile(r"<sub>.*?</sub>", re.DOTALL)
PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")
CODE = re.compile(r"`[^`]*`")
CODE_BLOCK = re.compile(r"(?<=\n\n)(?: {4,}\S.*\n+)+")
INDENTED = re.compile(r"^ {4,}\S.*$")  # code: four spaces, six below an item
NO_PROSE = re.compile(r"^ *(\||#|---)")
ITEM = re.compile(r"^ *([-*]|\d+\.) ")
END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<! vs\.)[\"'*)]* +")
NAMES = re.compile(r"(?:[\w./+-]+(?: [\w./+-]+)?, ){2,}(?:and |or )?[\w./+-]+(?: (?:and|or) [\w./+-]+)?")

SPAN = "§"  # stands for a code span

DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.]*\d)")
NAMED = (
    "Python|Llama|LLaMA|Vicuna|Qwen|EAGLE|Apache|GPT|torch|PyTorch|transformers|SGLang|vLLM|TensorRT-LLM|llama.cpp|CUDA|"
    "Triton|GCC|Phi|OLMo|Gemma|version|section|sections|and|arXiv"
)
VERSION = re.compile(rf"(?:\b(?:{NAMED})[ -]?v?|[A-Za-z]-)\d+(?:\.\d+)+|(?<!\d)\d{{4}}\.\d{{5}}")
COMMIT = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b")
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
PAST = re.compile(r"\bhad been\b")


def blocks(text: str) -> list[str]:
    """Return the paragraphs and items of a page, each on one line, code spans as `SPAN`."""
    for pattern in (FENCED, FOOTER):
        text = pattern.sub("", text)
    text = RENDERED.sub(lambda part: part.group(3) if "value:" in part.group(1) else "\n\n", text)
    text = PICTURE.sub("", COMMENT.sub("", text))
    text = LINK.sub(lambda link: CODE.sub(SPAN, link.group(1)), text)
    found: list[list[str]] = [[]]
    after_blank = True
    for line in text.splitlines():
        if not line.strip() or NO_PROSE.match(line) or (INDENTED.match(line) and after_blank and not ITEM.match(line)):
            found.append([])
            after_blank = not line.strip() or after_blank
            continue
        if ITEM.match(line):
            found.append([])
            line = ITEM.sub("", line, count=1)
        found[-1].append(line.strip())
        after_blank = False
    return [CODE.sub(SPAN, " ".join(lines)) for lines in found if lines]


def without_code(text: str) -> str:
    """Return a page without code and comments: prose, headings, tables, and what pictures say."""
    for pattern in (FENCED, COMMENT, CODE_BLOCK, CODE):
        text = pattern.sub("", text)
    return text


def sentences(text: str) -> list[str]:
    """Return the sentences of a page."""
    return [sentence for block in blocks(text) for sentence in END.split(block) if sentence]


def words(sentence: str) -> int:
    """Return the number of words of a sentence: what holds a letter, a digit or a code span."""
    short = NAMES.sub("names", re.sub(rf"{SPAN}(?:[,/ ]*(?:and |or )?{SPAN})+", SPAN, sentence))
    return sum(bool(re.search(rf"[\w{SPAN}]", word)) for word in short.split())


def typed_decimals(text: str) -> list[str]:
    """Return the decimals that are typed into a page's prose: no rendered values, versions, ids or code."""
    prose = " ".join(blocks(RENDERED.sub("", text)))
    return DECIMAL.findall(VERSION.sub("", prose))


def of_the_past(text: str) -> list[str]:
    """Return the commit hashes, dates and "had been" of a page's prose."""
    prose = " ".join(blocks(text))
    return [found for pattern in (COMMIT, DATE, PAST) for found in pattern.findall(prose)]


def long_tables(text: str, most: int) -> list[str]:
    """Return the first lines of tables with more rows than `most`."""
    tables = re.findall(r"(?:^\|.*\n)+", FENCED.sub("", text) + "\n", re.MULTILINE)
    return [table.split("\n", 1)[0] for table in tables if table.count("\n") - 2 > most]


def entries(log: str) -> list[list[str]]:
    """Return the lines of each entry of the log. An entry begins at a heading, an item or a paragraph's bold title."""
    found: list[list[str]] = []
    for line in filter(str.strip, log.splitlines()):
        if re.match(r"#{2,} |\*\*|- ", line):
            found.append([])
        if found:
            found[-1].append(line)
    return found
