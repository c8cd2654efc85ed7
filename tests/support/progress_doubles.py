"""Progress that keeps its messages, or presses Ctrl-C."""

from trt_bisect.support.progress import Silent


class Said(Silent):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


class Stops(Said):
    """Presses Ctrl-C once, in the fourth step of the curve."""

    def __init__(self):
        super().__init__()
        self.to_go = None

    def stage(self, title, total):
        if title.startswith("Measuring ") and title.endswith(" plans") and self.to_go is None:
            self.to_go = 4

    def step(self, what, size=1):
        if self.to_go:
            self.to_go -= 1
            if self.to_go == 0:
                raise KeyboardInterrupt


class StopsAt(Said):
    """Presses Ctrl-C, or makes another mistake, when a stage begins whose title begins with some words."""

    def __init__(self, title, error=KeyboardInterrupt):
        super().__init__()
        self.title, self.error = title, error

    def stage(self, title, total):
        if title.startswith(self.title):
            raise self.error


class Steps(Said):
    """Counts steps and stages, and presses Ctrl-C at one of them."""

    def __init__(self, at=0):
        super().__init__()
        self.count, self.at, self.began = 0, at, {}

    def stage(self, title, total):
        self.began[title] = self.count
        self.step(title)

    def step(self, what, size=1):
        self.count += 1
        if self.count == self.at:
            raise KeyboardInterrupt
