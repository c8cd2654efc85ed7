"""``python -m benchmarks.answer published|prices``: see the modules of these names."""

from benchmarks.answer import prices, published
from benchmarks.measure import command_line

if __name__ == "__main__":
    command_line(__doc__, published.measure, prices.measure)
