"""The fixed program whose CPU time shows how fast this machine is: `python -I -S -B cpu_program.py`.

A script of the standard library alone, in an interpreter like those of programs of the policy, and like them made of
loops over integers, lists and dictionaries. Prints the CPU seconds of each repetition, one a line. Anyone who changes
what it does changes what a reference second is: `calibration.REFERENCE_S` is then measured again.
"""

import sys
import time

NUM_REPETITIONS = 5
PRIMES_BELOW, CHAINS_BELOW = 100_000, 10_000


def main() -> None:
    """Do the same work some times over, and say how long each took."""
    for _ in range(NUM_REPETITIONS):
        started_s = time.process_time()
        num_primes(PRIMES_BELOW)
        longest_chain(CHAINS_BELOW)
        sys.stdout.write(f"{time.process_time() - started_s:.9f}\n")


def num_primes(limit: int) -> int:
    """Return how many primes are below a limit; by the sieve of Eratosthenes."""
    is_prime = [True] * limit
    is_prime[:2] = [False, False]
    number = 2
    while number * number < limit:
        if is_prime[number]:
            for multiple in range(number * number, limit, number):
                is_prime[multiple] = False
        number += 1
    return sum(is_prime)


def longest_chain(limit: int) -> int:
    """Return the number below a limit that takes the most steps to 1: halved where even, else three times and one."""
    num_steps = {1: 0}
    longest = 1
    for start in range(2, limit):
        number, path = start, []
        while number not in num_steps:
            path.append(number)
            number = 3 * number + 1 if number % 2 else number // 2
        steps = num_steps[number]
        for passed in reversed(path):
            steps += 1
            num_steps[passed] = steps
        if num_steps[start] > num_steps[longest]:
            longest = start
    return longest


if __name__ == "__main__":
    main()
