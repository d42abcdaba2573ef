"""`--dry-run`: what would be done, and the first thing that would be said; nothing is called and no weight is read."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from unify_agent.agent.crew import Setup, check_search_options
from unify_agent.agent.fleet import devices
from unify_agent.agent.loop import begin
from unify_agent.agent.record import Recorder
from unify_agent.agent.requests import Asked
from unify_agent.agent.toolcalls import TOOLS
from unify_agent.agent.wording import load_prompts
from unify_agent.errors import UserError


def dry_run(setup: Setup, asked: Asked, out: Path, batch: int, gpus: int | None) -> int:
    """Prints the plan; returns the exit code. Raises UserError as the run itself would."""
    from unify_agent.agent.load import picture_size, sampler_settings, weights_hash
    from unify_agent.judging.endpoint import base_url_of
    from unify_agent.model.folder import ModelFolder

    check_search_options(setup)
    folder = ModelFolder(setup.model)
    words = load_prompts(setup.words or ("full" if setup.policy == "openai" else folder.prompts))
    height, width = picture_size(folder, setup.size, setup.aspect)
    sampler = sampler_settings(words.name, setup.sampler)
    recorder, weights = Recorder(out, setup.policy), weights_hash(folder)
    done = sum(
        recorder.finished(each.category, each.id, each.prompt, setup.made_with(each, weights)) is not None
        for each in asked.requests
    )
    workers = devices(gpus) if gpus else []
    services = [each for each in (setup.endpoint, setup.judge_endpoint) if each]
    at = " and ".join(f"{each.model} at {base_url_of(each.url)[0]}" for each in services)
    for name, value in (
        ("requests", f"{len(asked.requests)}, of which {done} are done"),
        ("refused", len(asked.refused)),
        ("model", f"{setup.model} (layout {folder.layout}, prompts {words.name})"),
        ("policy", setup.policy),
        ("endpoint", at or "none"),
        ("search", setup.search if setup.tools and setup.search else "none"),
        ("judge", setup.judge or ("pixels" if folder.prompts == "compact" else "self")),
        ("picture", f"{height}x{width}"),
        ("sampler", ", ".join(f"{name} {value}" for name, value in asdict(sampler).items())),
        ("seed", setup.seed),
        ("batch", batch),
        ("workers", ", ".join(each or "CPU" for each in workers) or "this process"),
        ("out", out),
    ):
        print(f"{name:9} {value}")
    for each in asked.refused:
        print(f"refused   {each.where}: {each.reason}")
    if not asked.requests:
        raise UserError("there is nothing to do: no request could be taken")
    episode = setup.episode(asked.requests[0])
    begin(episode, words)
    print(f"\nThe first request, {episode.id}:\n")
    if setup.policy == "openai":
        from unify_agent.agent.endpoint import messages_of

        messages = [message.record() for message in messages_of(episode)]
        body = {"model": setup.endpoint.model if setup.endpoint else "", "messages": messages}
        if setup.endpoint and setup.endpoint.mode == "tools" and setup.tools:
            body["tools"] = list(TOOLS)
        print(json.dumps(body, ensure_ascii=False, indent=1))
    else:
        print(episode.input)
    return 0
