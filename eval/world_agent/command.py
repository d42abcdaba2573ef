"""`python -m eval world-agent maintain|deduce|score|replay|report|validate` (docs/world_agent.md)."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from data.progress import Progress
from eval.world_agent.asking import INCOMPLETE
from eval.world_agent.cases import Case, known_cases, load, read_yaml
from eval.world_agent.chat import ROOM, ChatJudge, ChatPlayer
from eval.world_agent.deduce.baselines import PREDICTORS, baseline
from eval.world_agent.deduce.brief import CONDITIONS, MODES
from eval.world_agent.deduce.episode import Episode, replay_episode, score_episode
from eval.world_agent.deduce.family import FOLDS, known_families, load_family
from eval.world_agent.deduce.validate import check_family, freeze
from eval.world_agent.engine import TIERS, Engine
from eval.world_agent.judging import ReferenceJudge
from eval.world_agent.maintain import Game, finish, replay_run, score_run
from eval.world_agent.policies import POLICIES, policy
from eval.world_agent.replay_page import write_page
from eval.world_agent.report import write_report
from eval.world_agent.runs import find_runs, read_run
from eval.world_agent.talk import Player, Reply, Talk, Turn, hold
from eval.world_agent.validate import check_case
from unify_agent.errors import UserError
from unify_agent.judging import ChatClient, Endpoint

if TYPE_CHECKING:
    from eval.world_agent.own import OwnPlayer

R = TypeVar("R")
T = TypeVar("T")
OUT = Path("outputs/world_agent")
KEY_HELP = "variable of the environment that holds its key"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m eval world-agent`."""
    commands = parser.add_subparsers(dest="track", required=True, metavar="COMMAND")
    play = commands.add_parser("maintain", help="keep a told world running: play, judge, score")
    _cases(play, known_cases())
    play.add_argument("--tier", nargs="+", choices=TIERS, default=list(TIERS), help="what is given (default all three)")
    _player(play, POLICIES)
    play.add_argument("--judge-url", help="OpenAI-compatible server of the judge (default: by ids, without a model)")
    play.add_argument("--judge-model", help="model of the judge")
    play.add_argument("--judge-key-env", metavar="NAME", help=KEY_HELP)
    play.add_argument(
        "--calls",
        choices=["tools", "text"],
        default="tools",
        help="how the model of --url calls: function calling, or JSON in plain text (default tools)",
    )
    play.add_argument("--turns", type=int, default=40, help="turns of a round, after which it is ended (default 40)")
    predict = commands.add_parser("deduce", help="predict a world that runs by itself, and act in it")
    _cases(predict, known_families())
    predict.add_argument(
        "--mode", nargs="+", choices=MODES, default=list(MODES), help="m1: watch; m2: act (default both)"
    )
    predict.add_argument(
        "--condition",
        nargs="+",
        choices=CONDITIONS,
        default=list(CONDITIONS),
        help="open: rules exactly; naming: in words (default both)",
    )
    predict.add_argument(
        "--fold",
        nargs="+",
        type=int,
        choices=range(FOLDS),
        default=list(range(FOLDS)),
        help="starts (default all five)",
    )
    _player(predict, PREDICTORS)
    predict.add_argument("--attempts", type=int, default=3, help="answers that a question may take (default 3)")
    for name, text in (
        ("score", "score finished runs from their records alone"),
        ("replay", "apply saved records again and compare every hash"),
        ("report", "tables and charts over runs, as one page"),
    ):
        each = commands.add_parser(name, help=text)
        each.add_argument("runs", nargs="+", type=Path, help="run folders, or folders that hold some")
        if name == "replay":
            each.add_argument("--page", type=Path, help="also write a page that shows one maintenance run on its map")
        if name == "report":
            each.add_argument("--out", type=Path, default=OUT / "report", help=f"folder (default {OUT / 'report'})")
    check = commands.add_parser("validate", help="prove that cases are sound")
    check.add_argument("cases", nargs="*", help="ids or files (default: every case)")
    check.add_argument("--freeze", action="store_true", help="first write the timelines of these deduction families")


def _cases(parser: argparse.ArgumentParser, known: dict[str, Path]) -> None:
    ids = ", ".join(known)
    parser.add_argument("--case", nargs="+", required=True, metavar="ID", help=f"ids, files, or 'all' (English): {ids}")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder of the runs (default {OUT}); runs are continued")


def _player(parser: argparse.ArgumentParser, scripted: Any) -> None:
    parser.add_argument("--player", choices=list(scripted), help="a scripted player instead of a model")
    parser.add_argument("--url", help="OpenAI-compatible server of the player")
    parser.add_argument("--model", help="model of that server; without --url a model folder or hub id")
    parser.add_argument("--key-env", metavar="NAME", help=KEY_HELP)
    parser.add_argument("--batch", type=int, default=8, help="runs that a model folder plays side by side (default 8)")
    parser.add_argument("--temperature", type=float, default=0.0, help="of a model's answers (default 0, greedy)")
    parser.add_argument("--seed", type=int, default=0, help="of a model's answers (default 0)")
    parser.add_argument("--room", type=int, help=f"tokens of one answer (default {ROOM}; of a model folder less)")
    parser.add_argument("--budget", type=int, help="tokens that a run may spend before it stops; it can be continued")


def _client(url: str | None, model: str | None, key_env: str | None, what: str) -> ChatClient:
    if not url or not model:
        raise UserError(f"{what}: give both the url and the model")
    return ChatClient(Endpoint.parse(url, model, key_env=key_env))


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._") or "player"


def _chosen(asked: list[str], known: dict[str, Path]) -> list[str]:
    return [name for name in known if "." not in name] if asked == ["all"] else asked


def _check(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}: at least 1")
    served = [name for name in ("url", "model", "key_env") if getattr(args, name) is not None]
    if (args.player is None) is not bool(served):
        raise UserError("give one of: --player; --url and --model; --model alone, a model folder")
    if not 0 <= args.temperature < 10:
        raise UserError(f"--temperature {args.temperature}: from 0 to below 10")


def _model(args: argparse.Namespace, calls: Literal["tools", "text"]) -> ChatPlayer | OwnPlayer | None:
    """The model that plays; None for a scripted player."""
    if args.player is not None:
        return None
    if args.url is None and args.key_env is None:
        from eval.world_agent.own import load_player

        return load_player(args.model, args.room, args.temperature, args.seed)
    client = _client(args.url, args.model, args.key_env, "player")
    return ChatPlayer(client, calls, args.room, args.temperature, args.seed)


def _batches(runs: list[R], model: ChatPlayer | OwnPlayer | None, size: int) -> Iterator[list[R]]:
    """Runs that are played side by side: several at a time only by a model of our own."""
    size = size if hasattr(model, "replies") else 1
    yield from (runs[at : at + size] for at in range(0, len(runs), size))


def _held(talks: list[Talk[T]], player: Player) -> list[T]:
    """What the conversations of runs side by side came to."""

    def answer(turns: list[Turn]) -> list[Reply]:
        several = getattr(player, "replies", None)
        return several(turns) if several else [player.reply(turn) for turn in turns]

    return hold(talks, answer)


def _maintain(args: argparse.Namespace) -> int:
    _check(args, "turns", "room", "budget", "batch")
    judge_model = None
    if args.judge_url or args.judge_model or args.judge_key_env:
        judge_model = ChatJudge(_client(args.judge_url, args.judge_model, args.judge_key_env, "judge"))

    def judge(case: Case, engine: Engine) -> ReferenceJudge | ChatJudge:
        return judge_model or ReferenceJudge(case, engine.log)

    cases = [load(name) for name in _chosen(args.case, known_cases())]
    model, left = _model(args, args.calls), 0
    with Progress("maintain", sum(len(case.rounds) for case in cases) * len(args.tier), "rounds") as progress:
        games = []
        for case, tier in itertools.product(cases, args.tier):
            who = model or policy(args.player, case, tier)
            place = args.out / "maintain" / _slug(who.identity["player"]) / _name(case.id, case.language) / tier
            games.append(Game(place, case, tier, who, args.turns, args.budget, progress.advance))
        for group in _batches(games, model, args.batch):
            engines = _held([game.talk() for game in group], group[0].player)
            for game, engine in zip(group, engines, strict=True):
                result, open_ = finish(game, engine, judge(game.case, engine))
                left += open_
                print(f"{game.folder.path}: {_told(result)}", flush=True)
    if left:
        print(f"{left} questions to the judge stay open; no zero stands for them. The same command asks them again")
    return INCOMPLETE if left else 0


def _name(case: str, language: str) -> str:
    return case if language == "en" else f"{case}.{language}"


def _deduce(args: argparse.Namespace) -> int:
    _check(args, "attempts", "room", "budget", "batch")
    families = [load_family(name) for name in _chosen(args.case, known_families())]
    asked = [(f, m, c, k) for f in families for m in args.mode for c in args.condition for k in args.fold]
    model, left = _model(args, "text"), 0
    with Progress("deduce", len(asked), "episodes") as progress:
        episodes = []
        for family, mode, condition, fold in asked:
            who = model or baseline(args.player, family, fold)
            place = args.out / "deduce" / _slug(who.identity["player"]) / _name(family.id, family.language)
            place = place / f"{mode}_{condition}_{fold}"
            episodes.append(Episode(place, family, mode, condition, fold, who, args.attempts, args.budget))
        for group in _batches(episodes, model, args.batch):
            _held([episode.talk() for episode in group], group[0].player)
            for episode in group:
                result = score_episode(episode.folder.path)
                left += result["unanswered"]
                print(f"{episode.folder.path}: {_told(result)}", flush=True)
                progress.advance()
    if left:
        print(f"{left} questions were never answered: their readouts have no total")
    return INCOMPLETE if left else 0


def _told(result: dict[str, Any]) -> str:
    """A score in one line."""
    cost = result["cost"]
    lost = f"; {cost['unusable']} of {cost['turns']} turns could not be used" if cost["unusable"] else ""
    if result["track"] == "maintain":
        total = result["total"]
        if total is None:
            return f"no total: {len(result['unresolved'])} questions to the judge are open{lost}"
        return f"completion {total['completion']}, relations {total['relation']}{lost}"
    parts = [f"{name} {each['f1'] or 'unanswered'}" for name, each in result["readouts"].items()]
    return ", ".join(parts) + (", goal reached" if result["outcome"]["goal"] and result["mode"] == "m2" else "") + lost


def _each(paths: list[Path], work: Callable[[Path, str], str]) -> int:
    failed = 0
    for path in find_runs(paths):
        try:
            print(f"{path}: {work(path, read_run(path)['track'])}")
        except UserError as error:
            failed += 1
            print(f"error: {error}")
    return INCOMPLETE if failed else 0


def _score(path: Path, track: str) -> str:
    return _told(score_run(path) if track == "maintain" else score_episode(path))


def _replay(path: Path, track: str) -> str:
    if track == "deduce":
        return f"{len(replay_episode(path))} events replayed, every hash is the same"
    engine = replay_run(path)
    return f"{len(engine.log)} rows and {len(engine.snapshots)} snapshots replayed, every hash is the same"


def _problems(asked: list[str], frozen: bool) -> Iterator[tuple[str, list[str]]]:
    families, cases = known_families(), known_cases()
    if frozen and not asked:
        raise UserError("--freeze: name the families whose timelines are to be written anew")
    for name in asked or [*cases, *families]:
        if name in families or (name.endswith(".yaml") and "processes" in (read_yaml(Path(name), "case") or ())):
            if frozen:
                freeze(load_family(name))
            yield name, check_family(load_family(name))
        elif frozen:
            raise UserError(f"--freeze: {name} is no deduction family, so it has no timeline")
        else:
            yield name, check_case(load(name))


def _validate(args: argparse.Namespace) -> int:
    wrong = 0
    for name, problems in _problems(args.cases, args.freeze):
        print(f"{name}: {'sound' if not problems else f'{len(problems)} problems'}", flush=True)
        for problem in problems:
            print(f"  {problem}")
        wrong += bool(problems)
    return 1 if wrong else 0


def main(args: argparse.Namespace) -> int:
    """`python -m eval world-agent`."""
    match args.track:
        case "maintain":
            return _maintain(args)
        case "deduce":
            return _deduce(args)
        case "score":
            return _each(args.runs, _score)
        case "replay":
            code = _each(args.runs, _replay)
            if args.page and not code:
                print(f"page: {write_page(find_runs(args.runs), args.page)}")
            return code
        case "report":
            print(f"report: {write_report(find_runs(args.runs), args.out)}")
            return 0
        case _:
            return _validate(args)
