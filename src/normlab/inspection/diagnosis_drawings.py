"""The two drawings of a diagnosis: sizes over depth, and gradients and attention logits over depth."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Drawing:
    """A drawing that is made when it is asked for. ``alt`` says what it shows, with its numbers."""

    alt: str

    def show(self) -> None:
        """Show it as the book's figures are shown."""
        raise NotImplementedError
