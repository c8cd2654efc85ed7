"""A nightly comparison as text, Markdown and JUnit XML."""
