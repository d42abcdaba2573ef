"""The kinds of table: text-to-image pairs, pictures to text, text only, editing pairs.

| kind            | segments                                                            | loss                   |
|-----------------|---------------------------------------------------------------------|------------------------|
| `text_to_image` | caption, drawing                                                    | MSE on the drawing     |
| `image_to_text` | pictures (ViT), what is asked, what is answered, ...                | CE on what is answered |
| `text`          | text, or what is asked and answered                                 | CE, on the answers     |
| `editing`       | source pictures (VAE and ViT), instruction, drawing                 | MSE on the drawing     |

(BAGEL's data: facts/bagel.md sections 5 and 12.) A drawing sees its texts and pictures by name, so that condition
dropout works as for trajectories.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import AliasChoices, BaseModel, Field, model_validator

from unify_agent.datasets.tables import PictureColumn, Row, Show, TableSource, Words
from unify_agent.interleave.layout import Pixels
from unify_agent.interleave.segments import Drawing, Picture, Segment, Text, Unusable

PLACE = "<image>"
"""Where a picture stands in a conversation's text."""
ASKING = {"human", "user", "system"}
ANSWERING = {"gpt", "assistant"}


class TextToImageRow(Row):
    image: PictureColumn
    text: str | list[str]
    """The caption; of several one is drawn anew in every epoch."""


class TextToImageSource(TableSource):
    """A caption, then the picture to draw from it."""

    row_type = TextToImageRow

    def lay_out(self, row: TextToImageRow, show: Show, words: Words, pixels: Pixels) -> Sequence[Segment]:
        caption = Text(words.choose(row.text), role="context", name="caption")
        target = pixels.vae(show(row.image))
        return [caption, Drawing(target, pixels.vae_patch, sees=("caption",), copies=self.context.copies)]


class EditingRow(Row):
    source: PictureColumn | list[PictureColumn]
    instruction: str | list[str]
    target: PictureColumn


class EditingSource(TableSource):
    """Source pictures, what to do with them, and the picture that comes of it."""

    row_type = EditingRow

    def lay_out(self, row: EditingRow, show: Show, words: Words, pixels: Pixels) -> Sequence[Segment]:
        sources: list[Picture] = []
        for number, each in enumerate(_several(row.source), 1):
            sources += pixels.reference(show(each), number, joint=self.context.preset != "released")
        if not sources:
            raise Unusable("no source picture")
        instruction = Text(words.choose(row.instruction), role="context", name="instruction")
        names = [each.name for each in sources if each.name]
        target = pixels.vae(show(row.target))
        sees = ("instruction", *names)
        return [*sources, instruction, Drawing(target, pixels.vae_patch, sees=sees, copies=self.context.copies)]


class Said(BaseModel):
    """One side of a conversation, in LLaVA's words (`from`, `value`) or the chat format's (`role`, `content`)."""

    speaker: str = Field(validation_alias=AliasChoices("from", "role"))
    text: str = Field(validation_alias=AliasChoices("value", "content"))


class ConversationRow(Row):
    """A conversation, or in short `question` and `answer`, or `text` alone (a caption, or plain text)."""

    conversations: list[Said] | None = None
    question: str | None = None
    answer: str | None = None
    text: str | None = None

    @model_validator(mode="after")
    def _one_form(self) -> ConversationRow:
        forms = [self.conversations is not None, self.answer is not None, self.text is not None]
        if sum(forms) != 1:
            raise ValueError("exactly one of conversations, answer (with question) and text is needed")
        return self

    def said(self) -> Iterator[tuple[bool, str]]:
        """(whether it is trained, text) of every side, in order."""
        if self.text is not None:
            yield True, self.text
        elif self.answer is not None:
            if self.question is not None:
                yield False, self.question
            yield True, self.answer
        for each in self.conversations or ():
            if each.speaker not in ASKING | ANSWERING:
                raise Unusable("unknown speaker", repr(each.speaker))
            yield each.speaker in ANSWERING, each.text


class ImageToTextRow(ConversationRow):
    image: PictureColumn | list[PictureColumn]


class TextSource(TableSource):
    """Text that is trained whole, or conversations of which the answers are."""

    row_type = ConversationRow

    def lay_out(self, row: ConversationRow, show: Show, words: Words, pixels: Pixels) -> Sequence[Segment]:
        return _trained(
            Text(words.encode(text), loss=True) if trained else Text(words.encode(text), role="user")
            for trained, text in row.said()
        )


class ImageToTextSource(TableSource):
    """Pictures and what is said about them. They stand where the text says `<image>`, all in front if it never does."""

    row_type = ImageToTextRow

    def lay_out(self, row: ImageToTextRow, show: Show, words: Words, pixels: Pixels) -> Sequence[Segment]:
        pictures = [Picture(pixels.vit(show(each)), "vit", pixels.vit_patch) for each in _several(row.image)]
        if not pictures:
            raise Unusable("no picture")
        return _trained(self._segments(list(row.said()), pictures, words))

    def _segments(self, said: list[tuple[bool, str]], pictures: list[Picture], words: Words) -> Iterator[Segment]:
        places = sum(text.count(PLACE) for trained, text in said if not trained)
        if places not in (0, len(pictures)):
            raise Unusable("pictures and their places differ", f"{len(pictures)} pictures, {places} {PLACE}")
        left = iter(pictures)
        if not places:
            yield from left
        for trained, text in said:
            if trained:
                yield Text(words.encode(text), loss=True, role="caption")
                continue
            for number, piece in enumerate(text.split(PLACE)):
                if number:
                    yield next(left)
                if piece.strip():
                    yield Text(words.encode(piece.strip()), role="user")


def _several(pictures: PictureColumn | list[PictureColumn]) -> list[PictureColumn]:
    return pictures if isinstance(pictures, list) else [pictures]


def _trained(segments: Iterator[Segment]) -> list[Segment]:
    found = list(segments)
    if not any(isinstance(segment, Text) and segment.loss for segment in found):
        raise Unusable("nothing to train on")
    return found
