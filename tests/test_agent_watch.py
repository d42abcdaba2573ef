"""Who watches the model sees its words and its picture come about, changes nothing, and can end it."""

import numpy as np
import pytest
from datasets_tools import grammar, pixels
from generation_tools import tiny

from unify_agent.agent.episode import Episode
from unify_agent.agent.live import Cancelled
from unify_agent.agent.unified import UnifiedPolicy
from unify_agent.generation.sampler import SamplerSettings
from unify_agent.generation.text import Sampling


def policy():
    settings = SamplerSettings(steps=6, shift=1.0, text_scale=1.0, image_scale=1.0)
    return UnifiedPolicy(*tiny(), grammar(), pixels(), settings=settings, size=(32, 48), sampling=Sampling(max_new=14))


def episodes():
    return [Episode(name, f"Draw {name}.", input=f"Draw {name}.", stop="direct") for name in ("an owl", "a kite")]


def test_the_words_are_seen_as_they_are_written():
    made, both, seen = policy(), episodes(), []
    plain = [reply.text for reply in made.reply(both)]
    made.on_text = lambda episode, said: seen.append((episode.id, said))
    assert [reply.text for reply in made.reply(both)] == plain
    for episode, text in zip(both, plain, strict=True):
        said = [each for name, each in seen if name == episode.id]
        assert len(said) >= 2 and all(text.startswith(each.rstrip("\ufffd")) for each in said)


def test_the_picture_is_seen_as_it_forms_and_the_last_look_is_the_picture():
    made, both, seen = policy(), episodes(), []
    plain = made.draw(both)
    made.on_preview = lambda episode, picture: seen.append((episode.id, picture))
    pictures = made.draw(both)
    assert len(seen) == 2 * 5
    for episode, picture, before in zip(both, pictures, plain, strict=True):
        looks = [each for name, each in seen if name == episode.id]
        assert np.array_equal(picture, before) and all(each.shape == (32, 48, 3) for each in looks)
        assert np.abs(looks[-1].astype(int) - picture).max() <= 1
        assert np.abs(looks[0].astype(int) - picture).max() > 1


@pytest.mark.parametrize("hook", ["on_text", "on_preview", "on_step"])
def test_what_a_watcher_raises_ends_it_and_the_policy_goes_on(hook):
    made = policy()

    def stop(*_):
        raise Cancelled

    setattr(made, hook, stop)
    with pytest.raises(Cancelled):
        (made.reply if hook == "on_text" else made.draw)(episodes())
    setattr(made, hook, None)
    assert len(made.reply(episodes())) == 2 and len(made.draw(episodes())) == 2
