"""The contract of a grounded recaption: what keeps it, what breaks it and how that is called; and its repair."""

import pytest
from build_servers import World
from build_tools import bench
from chat_server import pictures
from hypothesis import example, given
from hypothesis import strategies as st

from data.build.contracts import Dropped
from data.build.recaption import of_trial, recaption
from data.build.recaption_rules import LANGUAGES, LENGTHS, amount_of, faults
from data.build.recaption_words import words_of
from data.build.trajectories import ANEW, research
from unify_agent.agent.loop import recaption_in
from unify_agent.errors import UserError

SCENE = (
    "At dusk on an old harbour, the Brass Owl stands on wet stone steps in front of a row of glowing lanterns, seen "
    "slightly from below in warm light. Soft reflections run over the water and a thin mist rises between the hills. "
)
KEPT = (
    "The final image completely preserves the round head and the glass eyes of the owl from image_1, and fully retains "
    "the engraved feathers from image_2."
)
SCENE_ZH = (
    "黄昏的老港口边，泽尔铜枭静静立在湿润的石阶上，身后是一排亮着暖光的灯笼，镜头从略低处仰望，水面映出柔和的光影，"
    "薄雾在远山之间缓缓升起，整体色调温润。"
)
KEPT_ZH = "最终画面完整保留了image_1中圆润的头部与玻璃般的眼睛，并完全保留image_2中羽毛的雕刻纹理。"

GOOD = {
    "en": [
        SCENE + KEPT,
        SCENE + "Preserve the exact facial features of the owl as shown in image_1 and image_2: round head, eyes.",
        SCENE + "The round head of image_1 is kept as it is. The engraved feathers stay exactly as in image_2.",
        SCENE + "The round head and the eyes are exactly those of image_1; the feathers are the same as in image_2.",
        SCENE + "As in image_1, the head is round and the eyes are wide, both unaltered. " + KEPT,
        SCENE + "It does not alter the round head of image_1 but preserves it, and the feathers of image_2.",
        SCENE + "From image_1 the round head, the short beak and the glass eyes remain unchanged; the colour of "
        "the brass is identical to image_2.",
        "Set in a misty valley, the owl from image_1 perches on a ruined gate while pilgrims pass below with paper "
        "lamps, in the manner of a woodcut with deep blue shadows and one bright edge of light. " + KEPT,
        "Show lights flash over the stage where the Brass Owl of image_1 turns its head, and place settings gleam on "
        "the tables of the front row under a painted ceiling of stars and clouds in gold leaf. " + KEPT,
        SCENE + "It not only preserves the glass eyes of image_1 but keeps the engraved feathers of image_2, too.",
        "Paint peels from the walls of a dim workshop, where the owl rests between open clocks and a lamp, and "
        "sunlight falls through a dusty window onto its metal back in long stripes that add a calm glow. " + KEPT,
        SCENE + KEPT + " The whole has the quiet mood of an old photograph.",
        SCENE + "Use of gold leaf lifts the lanterns from the dusk; produce stalls line the quay. " + KEPT,
        SCENE + "Behind it the reference library of the port stands open. " + KEPT,
        SCENE + "While the pose is new, the shape of the head, the beak and the eyes is faithful to image_1 and the "
        "feathers carry over from image_2. The mood is calm. Colours are warm.",
        "Scene: " + SCENE + "Preservation: the round head and glass eyes of image_1 are maintained, as are the "
        "engraved feathers of image_2.",
        "The owl wants to please the crowd and spreads its wings above a wooden stage, where children sit on the floor "
        "around a picture 3 metres wide that shows the first map of the town and its harbour. " + KEPT,
    ],
    "zh": [
        SCENE_ZH + KEPT_ZH,
        SCENE_ZH + "image_1里圆润的头部保持不变，羽毛的雕刻纹理与image_2完全一致。",
        SCENE_ZH + "头部的轮廓与image_1所示别无二致；羽毛的纹理与image_2所示一致。",
        SCENE_ZH + "与image_1一样，头部圆润、眼神清澈，毫无改变；image_2的羽毛纹理同样完好保留。",
        SCENE_ZH + "头部与眼睛的造型忠实于image_1，羽毛的纹理沿用image_2。整个画面安静而温暖。",
        "将军府前的石阶上，泽尔铜枭展开双翼，邀请来的宾客手持请柬站在两侧，画面中央的灯火照亮铜质的羽毛，远处的山峦在夜色里"
        "渐渐模糊，构图对称而庄重，光线从右上方落下。" + KEPT_ZH,
        "它把左翼轻轻搭在石栏上，让人感到宁静；制作精良的铜羽映着暮色，LED灯与3D投影在身后的拱门上流动，设计一流的广场空旷"
        "而明亮，远处有几只白鸽飞过，地面上的积水倒映出天空。" + KEPT_ZH,
        "蓝图一般的夜空下，泽尔铜枭停在钟楼的栏杆上，四周是层层叠叠的瓦屋顶，月光沿着铜羽流淌，街道上只有零星的灯火，空气里"
        "飘着细细的雪，画作般的色彩安静而克制，" + KEPT_ZH,
    ],
}  # fmt: skip

LONGER = {
    "en": [
        "In this realistic outdoor portrait, the man from image_1 stands on the left of a gravel path, one hand "
        "resting on a walking stick, while the ruined abbey rises behind him under a pale winter sky. He wears "
        "the dark tweed coat seen in image_2 and looks past the viewer. Thin fog softens the hills, and a crow "
        "crosses the frame. Preserve the exact facial features of William Butler Yeats as shown in image_1 and "
        "image_2: long oval face, high forehead, straight nose, grey eyes behind pince-nez, tousled dark hair. "
        "Maintain his bow tie and coat as referenced in both images.",
        "A wide cinematic shot of a bustling night market. At its centre, Dudu the popcorn bucket figure sits on "
        "a wooden counter, its matte resin surface catching the neon. Steam drifts from woks to the right; a "
        "crowd blurs past in the foreground. The colour palette is dominated by teal and magenta, the mood is "
        "playful. From image_1, the final image retains the striped bucket body, round cheeks and stubby arms "
        "without alteration; from image_2, it retains the popcorn hair and the pastel gradient of the base.",
        "The scene unfolds inside an advanced laboratory where Bruce Beutler leans over a microscope. Racks of "
        "glassware line the wall and cold daylight enters from a window on the right, giving the white surfaces "
        "a bluish cast. His receding silver hair, moustache and round glasses are reproduced faithfully from "
        "image_1, and the tailored grey jacket together with the relaxed smile is carried over from image_2.",
        "Grigori Perelman sits at a bare wooden table in a sparsely furnished apartment in St. Petersburg. "
        "Scattered papers, a chipped tea glass and a chessboard fill the table; soft light from a single window "
        "models his face. The composition is calm and slightly off-centre, with muted browns and greys. The "
        "untamed hair and full, greying beard stay true to image_1. Eye shape, thick eyebrows and the "
        "introverted expression match those in image_2 exactly.",
    ],
    "zh": [
        "写实风格的室外人像：画面左侧，image_1中的男子站在碎石小路上，一手扶着手杖，身后是废弃修道院的轮廓，"
        "冬日的天空苍白而高远。他身穿image_2中的深色粗花呢大衣，目光越过镜头望向远方。薄雾柔化了山丘的边缘，"
        "一只乌鸦正从画面上方掠过。请柬般精致的光影层次分明。最终画面完全保留image_1中男子的面部特征：修长的"
        "椭圆脸、高额头、灰色的眼睛与凌乱的黑发；同时完整保留image_2中大衣的剪裁与领结的样式。",
        "热闹的夜市里，嘟嘟爆米花桶玩偶坐在木质柜台上，哑光树脂表面映出霓虹的光。右侧的铁锅升起蒸汽，前景中人"
        "群虚化成流动的色块。整体色调以青色与品红为主，气氛俏皮。条纹桶身、圆脸颊和短短的手臂与image_1保持一"
        "致，爆米花造型的头发和底座的渐变色则沿用自image_2，没有任何改动。",
        "清晨的茶园层层叠叠，采茶女沿着石阶向上走，竹篓里盛着嫩叶。远处云海翻涌，阳光从云缝间洒下，把山脊勾出"
        "一道金边。镜头略微俯视，近景的茶叶清晰可见，远景渐渐淡入雾中。她的圆脸、细长的眉眼与盘起的发髻忠实还"
        "原image_1，靛蓝色的蜡染围裙及其花纹取自image_2并完整保留。",
    ],
}
"""As teachers write them, at length."""

BAD = {
    "en": [
        ("order", "Please put the owl from image_1 on the left. " + SCENE + KEPT),
        ("order", SCENE + "Add a fountain behind it. " + KEPT),
        ("order", "Draw the owl from image_1 in the evening. " + SCENE + KEPT),
        ("order", SCENE + "In the background, place a fountain. " + KEPT),
        ("order", SCENE + "The lamp of image_2 should be placed on the right. " + KEPT),
        ("order", SCENE + "Make sure that nothing is blurred. " + KEPT),
        ("order", SCENE + "Replace the hat of image_1 by a crown. " + KEPT),
        ("order", "Generate a poster. " + SCENE + KEPT),
        ("order", SCENE + "Use soft warm light. " + KEPT),
        ("order", SCENE + "Erase the lamp. " + KEPT),
        ("order", SCENE + KEPT + " You could also add a dragon."),
        ("order", SCENE + KEPT + " Remember to blur the hills."),
        ("talk", SCENE + "It preserves the round head of image_1 and the feathers of image_2, as you asked."),
        ("order", SCENE + "Capture the calm of the evening. " + KEPT),
        ("unnamed", SCENE + "The final image preserves the round head and the glass eyes from image_1."),
        ("unkept", SCENE + "The owl looks like the one in image_2. It preserves the round head and eyes of image_1."),
        ("unkept", SCENE + "The final image preserves everything from image_1 and image_2."),
        ("unkept", SCENE + "It does not preserve the round head of image_1, nor the engraved feathers of image_2."),
        ("unkept", "In a forest the owl of image_1 keeps walking towards the castle of image_2. " + SCENE),
        ("unknown", SCENE + KEPT + " The wings are those of image_3."),
        ("misnamed", SCENE + KEPT + " The wings come from the first image."),
        ("misnamed", SCENE + KEPT + " The wings come from the reference picture."),
        ("misnamed", SCENE + KEPT + " The wings come from Image 1."),
        ("misnamed", SCENE + KEPT + " The wings are as the reference shows."),
        ("misnamed", SCENE.replace("the Brass Owl", "the Brass Owl of image1") + KEPT),
        ("kept_early", KEPT + " " + SCENE + "A dog sleeps. A boat passes by. The sky is dark."),
        ("sceneless", "The owl. " + KEPT + " It retains the short beak, the claws and the tail as shown in image_1 and "
                      "the base of polished wood with four small brass nails that is seen in image_2."),
        ("language", SCENE + "黄昏的港口很安静。" + KEPT),
        ("language", "Au crépuscule, le hibou de laiton se tient sur les marches mouillées du vieux port devant une "
                     "rangée de lanternes, vu d'en bas dans une lumière chaude, et une brume monte entre les "
                     "collines lointaines pendant que les bateaux rentrent. preserves tête image_1 plumes image_2"),
        ("tags", SCENE + KEPT + " <think>"),
        ("tags", "```\n" + SCENE + KEPT + "\n```"),
        ("talk", "Here is the description you asked for. " + SCENE + KEPT),
        ("talk", "Sure! " + SCENE + KEPT),
        ("short", "The owl on stone steps at dusk with lanterns and water and hills behind. It preserves image_1's "
                  "round head and the feathers of image_2."),
        ("long", SCENE * 12 + KEPT),
    ],
    "zh": [
        ("order", SCENE_ZH + KEPT_ZH + "记得虚化背景。"),
        ("order", SCENE_ZH + KEPT_ZH + "另外，给铜枭加上一对翅膀。"),
        ("misnamed", SCENE_ZH + KEPT_ZH + "爪子来自第三张图。"),
        ("talk", "我为您描述如下：" + SCENE_ZH + KEPT_ZH),
        ("order", "请将image_1中的铜枭放在左边。" + SCENE_ZH + KEPT_ZH),
        ("order", "把image_1中的铜枭放在石阶上。" + SCENE_ZH + KEPT_ZH),
        ("order", SCENE_ZH + "然后把灯笼移到右侧。" + KEPT_ZH),
        ("order", "生成一张图。" + SCENE_ZH + KEPT_ZH),
        ("order", SCENE_ZH + "背景中，添加一座喷泉。" + KEPT_ZH),
        ("order", SCENE_ZH + "确保画面清晰。" + KEPT_ZH),
        ("order", SCENE_ZH + "注意光线要柔和。" + KEPT_ZH),
        ("unnamed", SCENE_ZH + "最终画面完整保留image_1中圆润的头部。"),
        ("unkept", SCENE_ZH + "铜枭看起来像image_2。最终画面完整保留image_1中圆润的头部。"),
        ("unkept", SCENE_ZH + "最终画面完整保留image_1和image_2中的所有内容。"),
        ("unkept", SCENE_ZH + "最终画面没有保留image_1中圆润的头部，image_2中的羽毛也很漂亮。"),
        ("unknown", SCENE_ZH + KEPT_ZH + "翅膀来自image_3。"),
        ("misnamed", SCENE_ZH + KEPT_ZH + "翅膀来自第一张图。"),
        ("misnamed", SCENE_ZH + KEPT_ZH + "翅膀来自参考图。"),
        ("misnamed", SCENE_ZH + KEPT_ZH + "翅膀与图1中的相同。"),
        ("language", SCENE_ZH + "The water is calm. " + KEPT_ZH),
        ("language", SCENE_ZH + "画面充满vintage的氛围。" + KEPT_ZH),
        ("language", SCENE_ZH + "とても静かです。" + KEPT_ZH),
        ("tags", SCENE_ZH + KEPT_ZH + "</recaption>"),
        ("talk", "好的，以下是描述。" + SCENE_ZH + KEPT_ZH),
        ("short", "铜枭立在石阶上。最终画面完整保留image_1中的头部，并保留image_2中的羽毛。"),
        ("sceneless", "铜枭。" + KEPT_ZH + "它的喙、爪与尾羽的形状也与image_1完全一致，底座的木纹和四颗"
                      "小铜钉则原样取自image_2，金属表面的光泽同样保持image_1中的样子。"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("language", "text"), [(each, text) for each in LANGUAGES for text in (*GOOD[each], *LONGER[each])]
)
def test_a_recaption_that_keeps_the_contract_has_no_fault(language, text):
    assert faults(text, language, 2, names=("Brass Owl of Zell", "泽尔铜枭")) == []


@pytest.mark.parametrize(("language", "kind", "text"), [(each, *case) for each in LANGUAGES for case in BAD[each]])
def test_what_breaks_it_is_called_by_its_name(language, kind, text):
    found = faults(text, language, 2, names=("Brass Owl of Zell", "泽尔铜枭"))
    assert kind in {each.kind for each in found}, found


NAMES = ("Brass Owl of Zell", "泽尔铜枭")
SENTENCES = {
    "en": [
        "At dusk the owl stands on the wet steps of an old harbour, in front of a row of glowing lanterns.",
        "Soft reflections run over the water and a thin mist rises between the hills behind the roofs.",
        "A child in a yellow coat looks up at it while the last boat comes in from the open sea.",
        "The view is low and wide, in deep blue and amber tones, with the calm of a woodcut.",
    ],
    "zh": [
        "黄昏的老港口边，铜枭静静立在湿润的石阶上，身后是一排亮着暖光的灯笼。",
        "水面映出柔和的光影，薄雾在远山之间缓缓升起，屋顶在暮色里连成一片。",
        "一个穿黄色外套的孩子抬头望着它，最后一艘船正从开阔的海面归来。",
        "视角低而宽广，色调以深蓝与琥珀为主，有木刻版画般的宁静。",
    ],
}
KEEPING = {
    "en": [
        "The final image completely preserves the {what} from {name}.",
        "The {what} stays exactly as in {name}.",
        "Preserve the exact {what} as shown in {name}.",
        "The {what} is faithful to {name}.",
    ],
    "zh": [
        "最终画面完整保留了{name}中{what}。",
        "{what}与{name}完全一致。",
        "{what}忠实于{name}。",
        "{what}沿用{name}，保持不变。",
    ],
}
WHAT = {
    "en": ["round head and glass eyes", "engraved feathers of dark brass"],
    "zh": ["圆润的头部与眼睛", "羽毛的雕刻纹理"],
}
SPOILERS = {
    "en": [("order", "Please make it brighter."), ("misnamed", "The beak is that of the second image."),
           ("unknown", "The claws are those of image_7."), ("tags", "<tool_call>"), ("language", "它很安静。")],
    "zh": [("order", "请让它更亮。"), ("misnamed", "喙来自第二张图。"), ("unknown", "爪子来自image_7。"),
           ("tags", "<tool_call>"), ("language", "It is very quiet here.")],
}  # fmt: skip


@st.composite
def texts(draw):
    """A recaption put together from parts, with its language and number of references."""
    language = draw(st.sampled_from(LANGUAGES))
    references = draw(st.integers(0, 2))
    scene = draw(st.permutations(SENTENCES[language]))[: draw(st.integers(3, 4))]
    kept = [
        draw(st.sampled_from(KEEPING[language])).format(what=WHAT[language][k], name=f"image_{k + 1}")
        for k in draw(st.permutations(range(references)))
    ]
    return language, references, [*scene, *kept]


@given(texts())
def test_any_scene_and_any_way_of_keeping_make_a_good_recaption(made):
    language, references, sentences = made
    joint = " " if language == "en" else ""
    assert faults(joint.join(sentences), language, references, names=NAMES) == []


@given(texts(), st.data())
def test_whatever_is_put_into_a_good_one_is_found_wherever_it_stands(made, data):
    language, references, sentences = made
    kind, spoiler = data.draw(st.sampled_from(SPOILERS[language]))
    at = data.draw(st.integers(0, len(sentences)))
    text = (" " if language == "en" else "").join([*sentences[:at], spoiler, *sentences[at:]])
    found = {each.kind for each in faults(text, language, references, names=NAMES)}
    assert kind in found or (kind == "misnamed" and references == 0), text


@given(texts(), st.data())
def test_without_a_reference_there_is_no_name_and_without_a_name_no_reference(made, data):
    language, references, sentences = made
    text = (" " if language == "en" else "").join(sentences)
    other = data.draw(st.sampled_from([n for n in range(3) if n != references]))
    kinds = {each.kind for each in faults(text, language, other, names=NAMES)}
    assert ("unknown" if other < references else "unnamed") in kinds


@given(st.text(max_size=400), st.sampled_from(LANGUAGES), st.integers(0, 2), st.sampled_from(["toy", "celebrity"]))
@example("image_" + "9" * 5000, "en", 1, "toy")
def test_no_text_breaks_the_rules_themselves(text, language, references, category):
    for each in faults(text, language, references, names=NAMES, prompt=text[:20], category=category):
        assert "{detail}" not in words_of(None).phrases(language).complaint_of([each])
    assert amount_of(text, language) >= 0 and LENGTHS[language][0] > 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_of_a_person_the_face_is_kept(language):
    scene = {"en": SCENE, "zh": SCENE_ZH}[language]
    without = {"en": "It preserves the blue coat from image_1.", "zh": "画面完整保留了image_1中蓝色的大衣。"}[language]
    face = {
        "en": "Preserve the exact facial features of the poet as shown in image_1: narrow face, grey eyes.",
        "zh": "诗人的脸型、眉眼与发型保持与image_1一致。",
    }[language]
    assert [each.kind for each in faults(scene + without, language, 1, category="celebrity")] == ["faceless"]
    assert faults(scene + face, language, 1, category="celebrity") == faults(scene + without, language, 1) == []


def test_names_of_the_prompt_may_be_in_another_language():
    text = SCENE_ZH.replace("泽尔铜枭", "DUDOO Tasty Tea") + KEPT_ZH
    assert [each.kind for each in faults(text, "zh", 2)] == ["language"]
    assert faults(text, "zh", 2, prompt="DUDOO Tasty Tea系列在港口") == []
    english = SCENE.replace("the Brass Owl", "泽尔铜枭") + KEPT
    assert [each.kind for each in faults(english, "en", 2)] == ["language"]
    assert faults(english, "en", 2, names=NAMES) == []


# ------------------------------------------------------------ repair


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("world")
    World().write(place)
    return place


def after(place, folder, name, habit="", **more):
    with bench(place, folder, World(habits={name: {habit}} if habit else {}), **more) as at:
        task = at.task(name)
        trajectory = research(task, at.spec, at.services)
        before = at.chat.calls
        made = recaption(task, trajectory, at.spec, at.services)
        return made, trajectory, at.chat.bodies[before:]


@pytest.mark.parametrize("name", ["Kiru", "月兔灯"])
def test_a_good_recaption_is_taken_as_it_is(tmp_path, folder, name):
    made, trajectory, asked = after(tmp_path, folder, name)
    assert asked == [] and made == trajectory and made.stop == "grounded"


@pytest.mark.parametrize(("name", "order"), [("Kiru", "It gives an order"), ("月兔灯", "含有命令")])
def test_a_recaption_that_breaks_the_contract_is_sent_back_with_what_is_wrong(tmp_path, folder, name, order):
    made, trajectory, asked = after(tmp_path, folder, name, "sloppy")
    assert len(asked) == 1 and len(pictures(asked[0])) == 2
    said = asked[0]["messages"]
    assert said[-2]["role"] == "assistant" and order in said[-1]["content"] and "image_2" in said[-1]["content"]
    assert made.recaption == recaption_in(made.turns[-1].reply) != trajectory.recaption
    assert [each.text for each in made.turns[-1].discarded] == [trajectory.turns[-1].reply]
    assert made.turns[-1].input == trajectory.turns[-1].input and order not in str(made.turns)


def test_a_reply_without_a_recaption_is_asked_for_again(tmp_path, folder):
    made, trajectory, asked = after(tmp_path, folder, "Kiru", "silent")
    assert trajectory.stop == "no_recaption" and len(asked) == 1
    assert made.stop == "grounded" and made.recaption


@pytest.mark.parametrize("tries", [1, 3])
def test_what_stays_wrong_is_dropped_after_so_many_tries(tmp_path, folder, tries):
    with bench(tmp_path, folder, World(habits={"Kiru": {"stubborn"}}), trajectories={"recaption_tries": tries}) as at:
        trajectory = research(at.task("Kiru"), at.spec, at.services)
        before = at.chat.calls
        with pytest.raises(Dropped) as dropped:
            recaption(at.task("Kiru"), trajectory, at.spec, at.services)
        assert at.chat.calls - before == tries - 1
    assert dropped.value.stage == "recaption" and "order: " in dropped.value.detail


def test_a_further_trial_has_a_recaption_of_its_own_asked_once(tmp_path, folder):
    with bench(tmp_path, folder) as at:
        task = at.task("Kiru")
        first = recaption(task, research(task, at.spec, at.services), at.spec, at.services)
        before = at.chat.calls
        second = of_trial(task, first, 2, at.spec, at.services)
        assert at.chat.calls == before + 1 and at.chat.bodies[-1]["temperature"] >= ANEW
        assert at.chat.bodies[-1]["seed"] != at.chat.bodies[before - 1]["seed"]
        assert of_trial(task, first, 2, at.spec, at.services) == second and at.chat.calls == before + 1
        of_trial(task, first, 3, at.spec, at.services)
        assert at.chat.calls == before + 2 and first.turns[-1].discarded == ()


def test_words_of_ones_own_are_checked(tmp_path):
    (tmp_path / "words.yaml").write_text("en: {brief: x}\n")
    with pytest.raises(UserError, match=r"words\.yaml: en\.complaint"):
        words_of(tmp_path / "words.yaml")
