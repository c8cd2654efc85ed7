"""Tests with Ray. A package, so that a fixture can be made once for all of them."""
