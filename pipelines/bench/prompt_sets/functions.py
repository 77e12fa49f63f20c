"""Tasks to write a small function, in the manner of MBPP: a sentence, and tests that the function should pass.

The results in the tests are computed by the functions below, which no prompt shows.
"""

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

WORDS = (
    *("amber", "bark", "civic", "delta", "eve", "fig", "garden", "hill", "iris", "jelly", "kayak", "lemon", "level"),
    *("maple", "noon", "olive", "pepper", "radar"),
)
REQUESTS = (
    "Write a python function to {}.",
    "Write a function to {}.",
    "You are an expert Python programmer, and here is your task: write a function to {}.",
    "Implement a Python function that can {}.",
)


class Some(NamedTuple):
    """A function, its name in a test and what it does: in a task, or which elements it selects from a list."""

    name: str
    text: str
    of: Callable[[Any], Any]


# Of a list of numbers, which may be empty.
SELECTIONS = (
    Some("even", "even numbers", lambda x: x % 2 == 0),
    Some("odd", "odd numbers", lambda x: x % 2 == 1),
    Some("negative", "negative numbers", lambda x: x < 0),
    Some("prime", "prime numbers", lambda x: x > 1 and all(x % factor for factor in range(2, x))),
    Some("two_digit", "numbers with exactly two digits", lambda x: 9 < abs(x) < 100),
    Some("multiple_of_three", "multiples of three", lambda x: x % 3 == 0),
    Some("one_digit", "numbers with a single digit", lambda x: abs(x) < 10),
    Some("square", "perfect squares", lambda x: x >= 0 and round(x**0.5) ** 2 == x),
    Some("above_ten", "numbers greater than ten", lambda x: x > 10),
)
OF_SELECTED = (  # {}: the selected numbers
    Some("sum", "find the sum of the {} in a given list", sum),
    Some("count", "count the {} in a list", len),
    Some("largest", "find the largest of the {} of a list, or None if it has none", lambda xs: max(xs, default=None)),
    Some("sorted", "sort the {} of a given list from large to small", lambda xs: sorted(xs, reverse=True)),
    Some("product", "multiply all {} in a list by each other", prod),
    Some(
        "repeated", "return those {} of a list that occur more than once", lambda xs: [x for x in xs if xs.count(x) > 1]
    ),
    Some(
        "running_sums",
        "return the running sums of the {} in a list",
        lambda xs: [sum(xs[: i + 1]) for i in range(len(xs))],
    ),
)
OF_NUMBER = (
    Some("digit_sum", "find the sum of the digits of a number", lambda x: sum(map(int, str(x)))),
    Some("reverse_digits", "reverse the digits of a positive integer", lambda x: int(str(x)[::-1])),
    Some("is_palindrome", "check whether a number is a palindrome", lambda x: str(x) == str(x)[::-1]),
    Some("binary_ones", "count the ones in the binary form of an integer", lambda x: x.bit_count()),
    Some("divisors", "list all divisors of a number", lambda x: [d for d in range(1, x + 1) if x % d == 0]),
    Some("collatz_steps", "count the steps of a number's Collatz sequence until it reaches 1", lambda x: steps(x)),
    Some("is_perfect_square", "check if an integer is a perfect square", lambda x: round(x**0.5) ** 2 == x),
    Some("to_octal", "convert a decimal number to a string of octal digits", lambda x: f"{x:o}"),
    Some("largest_digit", "find the largest digit of a given number", lambda x: int(max(str(x)))),
    Some("different_digits", "count the different digits of a number", lambda x: len(set(str(x)))),
)
OF_WORDS = (
    Some("longest_word", "find the longest word of a list, the first one of equals", lambda ws: max(ws, key=len)),
    Some("by_length", "sort a list of words by their lengths", lambda ws: sorted(ws, key=len)),
    Some("initials", "join the first letters of the words in a list", lambda ws: "".join(w[0] for w in ws)),
    Some("palindromes", "select the palindromes from a list of words", lambda ws: [w for w in ws if w == w[::-1]]),
    Some("lengths", "make a dictionary from each word of a list to its length", lambda ws: {w: len(w) for w in ws}),
    Some(
        "capitalized",
        "join a list of words to a sentence that starts with a capital letter",
        lambda ws: " ".join(ws).capitalize() + ".",
    ),
    Some(
        "count_vowels",
        "count the vowels in all words of a list",
        lambda ws: sum(w.count(v) for w in ws for v in "aeiou"),
    ),
    Some("last_letters", "return the last letter of each word in upper case", lambda ws: [w[-1].upper() for w in ws]),
    Some(
        "group_by_initial",
        "group a list of words by their first letters in a dictionary",
        lambda ws: {w[0]: [v for v in ws if v[0] == w[0]] for w in ws},
    ),
    Some("swap_ends", "swap the first and the last word of a list", lambda ws: [ws[-1], *ws[1:-1], ws[0]]),
)
OF_NUMBERS = (
    Some(
        "differences",
        "find the differences between neighboring numbers of a list",
        lambda xs: [b - a for a, b in pairwise(xs)],
    ),
    Some("rotate_left", "rotate a list to the left by two elements", lambda xs: xs[2:] + xs[:2]),
    Some(
        "is_increasing",
        "check whether the elements of a list increase strictly",
        lambda xs: all(a < b for a, b in pairwise(xs)),
    ),
    Some(
        "most_frequent",
        "find the most frequent element of a list, the first one of equals",
        lambda xs: Counter(xs).most_common(1)[0][0],
    ),
    Some(
        "second_smallest", "find the second smallest of the different numbers in a list", lambda xs: sorted(set(xs))[1]
    ),
    Some(
        "remove_duplicates", "remove duplicates from a list and preserve the order", lambda xs: list(dict.fromkeys(xs))
    ),
    Some(
        "in_pairs",
        "split a list into pairs, the last of which may be a single element",
        lambda xs: [xs[i : i + 2] for i in range(0, len(xs), 2)],
    ),
    Some("largest_index", "return the index of the largest element of a list", lambda xs: xs.index(max(xs))),
    Some(
        "interleave_halves",
        "interleave the two halves of a list of even length",
        lambda xs: [x for two in zip(xs[: len(xs) // 2], xs[len(xs) // 2 :], strict=False) for x in two],
    ),
    Some("clipped", "replace every negative number of a list by zero", lambda xs: [max(x, 0) for x in xs]),
    Some(
        "max_pair_product",
        "find the largest product of two neighbors in a list",
        lambda xs: max(a * b for a, b in pairwise(xs)),
    ),
)
OF_TUPLES = (
    Some("sort_by_second", "sort a list of tuples by their second elements", lambda ts: sorted(ts, key=lambda t: t[1])),
    Some(
        "sums_by_key",
        "add up the numbers of each name in a list of pairs",
        lambda ts: {name: sum(x for n, x in ts if n == name) for name, _ in ts},
    ),
    Some(
        "unzipped",
        "split a list of pairs into a tuple of two lists",
        lambda ts: ([a for a, _ in ts], [b for _, b in ts]),
    ),
    Some(
        "best_name",
        "find the name with the largest number in a list of pairs",
        lambda ts: max(ts, key=lambda t: t[1])[0],
    ),
    Some(
        "names_above",
        "list the names whose number is above the mean of all numbers in a list of pairs",
        lambda ts: [n for n, x in ts if x > sum(x for _, x in ts) / len(ts)],
    ),
    Some(
        "inverted",
        "make a dictionary from each number of a list of pairs to all of its names",
        lambda ts: {x: [n for n, y in ts if y == x] for _, x in ts},
    ),
    Some(
        "total_length",
        "find the length of all names in a list of pairs together",
        lambda ts: sum(len(n) for n, _ in ts),
    ),
    Some("flattened", "flatten a list of pairs to one list", lambda ts: [x for pair in ts for x in pair]),
)


# What a kind's functions take: an argument from random numbers.
ARGUMENTS: dict[str, Callable[[random.Random], Any]] = {
    "selected": lambda rng: rng.choices(range(-12, 40), k=8) + rng.sample((2, 4, 9, 15, 36, -6), 2),
    "number": lambda rng: rng.randint(10, 999),
    "words": lambda rng: rng.sample(WORDS, rng.randint(3, 5)),
    "numbers": lambda rng: rng.choices(range(-5, 15), k=rng.choice((6, 8))),
    "tuples": lambda rng: [(rng.choice(WORDS[:6]), rng.randint(1, 30)) for _ in range(rng.randint(3, 5))],
}


def functions() -> list[tuple[str, str]]:
    """Return a kind and a task with two or three tests for each prompt, in a random order that is always the same."""
    tasks = [
        ("selected", Some(f"{do.name}_{which.name}", do.text.format(which.text), selected(which, do)))
        for which in SELECTIONS
        for do in OF_SELECTED
    ]
    for kind, of_kind in zip(list(ARGUMENTS)[1:], (OF_NUMBER, OF_WORDS, OF_NUMBERS, OF_TUPLES), strict=True):
        tasks += [(kind, task) for task in of_kind]
    rng = random.Random(0)
    rng.shuffle(tasks)
    return [(kind, prompt(kind, task, rng)) for kind, task in tasks]


def selected(which: Some, do: Some) -> Callable[[list[int]], Any]:
    """Return a function of the selected elements of a list."""
    return lambda xs: do.of([x for x in xs if which.of(x)])


def prompt(kind: str, task: Some, rng: random.Random) -> str:
    """Return the text of a task with its tests."""
    arguments = [ARGUMENTS[kind](rng) for _ in range(rng.randint(2, 3))]
    tests = [f"assert {task.name}({argument!r}) == {task.of(argument)!r}" for argument in arguments]
    return "\n".join([rng.choice(REQUESTS).format(task.text), "Your code should pass these tests:", "", *tests])


def steps(x: int) -> int:
    """Return the length of a number's Collatz sequence."""
    return 0 if x == 1 else 1 + steps(3 * x + 1 if x % 2 else x // 2)
