"""Stage 3: the grounded recaption (paper, section 4.1.3), held to its contract (recaption_rules.py).

The teacher wrote it as the loop's last reply. A recaption that breaks the contract is sent back to it with what is
wrong, a bounded number of times; then the task is dropped. What was sent back stays in the record as discarded and is
no part of what is trained on, nor is the complaint: the record reads as if the good one had been said at once.

Each further trial of a task draws from a recaption of its own, as the paper's rejection sampling does: asked for anew
under another seed. All of it follows from the task and the number of the trial alone.
"""

from __future__ import annotations

from dataclasses import replace

from data.build.asking import asking
from data.build.contracts import Dropped, Task
from data.build.recaption_rules import Fault, faults
from data.build.recaption_words import words_of
from data.build.services import Services
from data.build.spec import Spec
from data.build.trajectories import ANEW, Teacher, require_ending, seed_of
from unify_agent.agent.endpoint import messages_of
from unify_agent.agent.episode import Discarded, Episode
from unify_agent.agent.loop import reason_of, recaption_in
from unify_agent.judging import Message, assistant, user


def recaption(task: Task, trajectory: Episode, spec: Spec, services: Services) -> Episode:
    """The trajectory with its recaption. Raises Dropped, or what a service that does not work raised."""
    return of_trial(task, trajectory, 1, spec, services)


def of_trial(task: Task, trajectory: Episode, number: int, spec: Spec, services: Services) -> Episode:
    """The trajectory with the recaption of trial `number`; the first one's is the loop's own."""
    teacher, words = Teacher(spec, services), words_of(spec.trajectories.recaption_words).phrases(task.language)
    last = trajectory.turns[-1]
    opened = replace(trajectory, turns=trajectory.turns[:-1], input=last.input)
    warmth = teacher.temperature if number == 1 else max(teacher.temperature, ANEW)

    def say(attempt: int, *more: Message) -> str:
        seed = seed_of(task, spec, "recaption", number, attempt)
        with asking("recaption", "the teacher"):
            return teacher.say(replace(opened, final=True), [*messages_of(opened), *more], seed, warmth).text

    reply = last.reply if number == 1 else say(0)
    rejected: list[Discarded] = []
    for attempt in range(1, spec.trajectories.recaption_tries + 1):
        found = recaption_in(reply)
        wrong = [Fault("missing")] if found is None else _faults(found, task, len(trajectory.references))
        if not wrong and found is not None:
            made = replace(last, reply=reply, discarded=(*last.discarded, *rejected))
            result = replace(trajectory, turns=[*trajectory.turns[:-1], made], recaption=found, stop="")
            result.stop = reason_of(result)
            require_ending(result, spec)
            return result
        rejected.append(Discarded(reply))
        if attempt < spec.trajectories.recaption_tries:
            reply = say(attempt, assistant(reply), user(words.complaint_of(wrong)))
    told = "; ".join(f"{each.kind}: {each.detail}" if each.detail else each.kind for each in wrong)
    raise Dropped("recaption", wrong[0].kind, told)


def _faults(text: str, task: Task, references: int) -> list[Fault]:
    return faults(
        text, "zh" if task.language == "zh" else "en", references,
        names=tuple(task.entity.names.values()), prompt=task.prompt, category=task.entity.category,
    )  # fmt: skip
