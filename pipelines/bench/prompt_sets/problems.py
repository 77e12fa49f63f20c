"""Problems of school mathematics, in the manner of MATH-500: their numbers are sampled by a seed."""

import random
from collections.abc import Callable

OF_EACH = 4  # prompts of a problem, with different numbers
REQUEST = "Please reason step by step, and put your final answer within \\boxed{}."
Problem = Callable[[Callable[[int, int], int]], str]  # takes n(low, high), a random whole number with both limits
PROBLEMS: dict[str, list[Problem]] = {
    "algebra": [
        lambda n: f"Solve for $x$: ${n(2, 9)}(x - {n(1, 9)}) + {n(2, 30)} = {n(31, 90)}$.",
        lambda n: (
            f"Let $f(x) = {n(2, 9)}x^2 - {n(2, 9)}x + {n(1, 20)}$ and $g(x) = x + {n(1, 9)}$. "
            f"What is $f(g({n(-4, 4)}))$?"
        ),
        lambda n: f"The roots of $x^2 - {n(9, 20)}x + {n(2, 15)} = 0$ are $r$ and $s$. Find the value of $r^2 + s^2$.",
        lambda n: (
            f"The sum of two numbers is {2 * n(20, 60)} and their difference is {2 * n(1, 15)}. What is their product?"
        ),
        lambda n: (
            f"An arithmetic sequence begins with {n(1, 12)} and has the common difference {n(2, 9)}. "
            f"What is the sum of its first {n(15, 60)} terms?"
        ),
        lambda n: f"For how many integers $x$ is $|{n(2, 5)}x - {n(1, 20)}| < {n(21, 50)}$? Explain briefly.",
    ],
    "number theory": [
        lambda n: f"What is the remainder when ${n(2, 9)}^{{{n(20, 99)}}}$ is divided by {n(10, 30)}?",
        lambda n: f"How many positive divisors does {2 ** n(2, 4) * 3 ** n(1, 3) * n(5, 11)} have?",
        lambda n: (
            f"Find the greatest common divisor and the least common multiple of {n(4, 15) * 6} and {n(16, 30) * 6}."
        ),
        lambda n: f"Convert the number {n(200, 2000)} from base 10 to base {n(4, 8)}.",
        lambda n: (
            f"A number leaves the remainder {n(1, 4)} when it is divided by 5 and {n(1, 6)} when it is divided by 7. "
            f"What is the smallest such number above {n(40, 300)}?"
        ),
    ],
    "counting": [
        lambda n: (
            f"A club has {n(8, 20)} members. In how many ways can it choose a president, a secretary and a "
            f"committee of {n(2, 5)} others?"
        ),
        lambda n: (
            f"How many {n(3, 5)}-digit numbers have only digits that are greater than {n(2, 6)}, and an even sum?"
        ),
        lambda n: (
            f"In how many ways can {n(5, 9)} different books stand on a shelf if {n(2, 4)} of them must be neighbors?"
        ),
        lambda n: (
            f"How many paths lead from $(0, 0)$ to $({n(3, 9)}, {n(3, 9)})$ if each step goes one unit "
            "to the right or up?"
        ),
        lambda n: (
            f"How many integers from 1 to {n(200, 1500)} are multiples of {n(3, 5)} or of {n(6, 11)}, but not both?"
        ),
    ],
    "probability": [
        lambda n: (
            f"A bag holds {n(3, 9)} red, {n(3, 9)} blue and {n(2, 9)} green marbles. Two are taken without "
            "replacement. How likely is it that they have the same color? Express your answer as a common fraction."
        ),
        lambda n: f"Two fair dice with {n(4, 12)} faces each are rolled. How likely is a sum of at least {n(6, 8)}?",
        lambda n: (
            f"A coin that shows heads with probability $\\frac{{{n(1, 4)}}}{{{2 * n(2, 3) + 1}}}$ is tossed {n(3, 6)} "
            "times. Find the probability of exactly two heads."
        ),
        lambda n: (
            f"In a game you win {n(10, 40)} dollars with probability $\\frac{{1}}{{{n(3, 9)}}}$ and lose "
            f"{n(2, 9)} dollars otherwise. What is the expected value of a game, to the nearest cent?"
        ),
    ],
    "geometry": [
        lambda n: (
            f"A right triangle has legs of lengths {n(3, 20)} and {n(3, 20)}. Find the length of its altitude to the "
            "hypotenuse, in simplest radical form."
        ),
        lambda n: (
            f"A circle has the center $({n(-6, 6)}, {n(-6, 6)})$ and the radius {n(2, 12)}. How far is its nearest "
            f"point from $({n(20, 30)}, {n(20, 30)})$?"
        ),
        lambda n: (
            f"A cone and a cylinder have the same base of radius {n(2, 9)}. The cylinder is {n(4, 15)} high and both "
            "have the same volume. What is the height of the cone, and what is that volume in terms of $\\pi$?"
        ),
        lambda n: (
            f"The sides of a rectangle are in the ratio ${n(2, 4)}:{n(5, 9)}$ and its perimeter is {n(20, 90)} "
            "centimeters. What is its area in square centimeters?"
        ),
        lambda n: (
            f"Find the area of the triangle with vertices $(0, 0)$, $({n(2, 12)}, {n(1, 9)})$ and "
            f"$({n(-9, -1)}, {n(2, 12)})$."
        ),
    ],
}


def problems() -> list[tuple[str, str]]:
    """Return a subject and a task for each prompt; no two are equal, and those of a problem are far from each other."""
    sample, every = random.Random(0).randint, {}
    for _ in range(OF_EACH):
        for subject, problem in [(subject, problem) for subject, of in PROBLEMS.items() for problem in of]:
            while (task := f"{problem(sample)}\n{REQUEST}") in every:
                continue
            every[task] = subject
    return [(subject, task) for task, subject in every.items()]
