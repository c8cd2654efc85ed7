"""``python -m benchmarks.answer published|costs|numbers``: see the modules of these names."""

from benchmarks.answer import costs, numbers, published
from benchmarks.measure import command_line

if __name__ == "__main__":
    command_line(__doc__, published.measure, costs.measure, numbers.measure)
