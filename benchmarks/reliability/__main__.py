"""``python -m benchmarks.reliability kill|stop|disk|fuzz``: prints figures; exit code 1 where a promise is broken."""

import sys

from benchmarks.measure import command_line
from benchmarks.reliability import disk, fuzz, kill, stop


def main() -> None:
    sys.exit(command_line(__doc__, kill.measure, stop.measure, disk.measure, fuzz.measure))


if __name__ == "__main__":
    main()
