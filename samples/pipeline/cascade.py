"""A cascade: a network reads a digit, and a second one is asked where the first one is not sure."""

SURE = 0.9999


def read(nets, sample):
    """Returns the probabilities of the ten digits; ``nets`` are called with feeds by name."""
    first, second = nets["first"], nets["second"]
    digit = sample["data"][None]
    found = first({"data": digit})["prob"]
    if found.max() < SURE:
        found = second({"data": digit})["prob"]
    return {"digit": found}
