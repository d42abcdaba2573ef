"""The contract of a grounded recaption: what keeps it, what breaks it and how that is called; and its repair."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.build.recaption_rules import LANGUAGES, LENGTHS, amount_of, faults

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
        SCENE_ZH + "头部与眼睛的造型忠实于image_1，羽毛的纹理沿用image_2。整个画面安静而温暖。",
        "将军府前的石阶上，泽尔铜枭展开双翼，邀请来的宾客手持请柬站在两侧，画面中央的灯火照亮铜质的羽毛，远处的山峦在夜色里"
        "渐渐模糊，构图对称而庄重，光线从右上方落下。" + KEPT_ZH,
        "它把左翼轻轻搭在石栏上，让人感到宁静；制作精良的铜羽映着暮色，LED灯与3D投影在身后的拱门上流动，设计一流的广场空旷"
        "而明亮，远处有几只白鸽飞过，地面上的积水倒映出天空。" + KEPT_ZH,
        "蓝图一般的夜空下，泽尔铜枭停在钟楼的栏杆上，四周是层层叠叠的瓦屋顶，月光沿着铜羽流淌，街道上只有零星的灯火，空气里"
        "飘着细细的雪，画作般的色彩安静而克制，" + KEPT_ZH,
    ],
}  # fmt: skip

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
        ("unnamed", SCENE + "The final image preserves the round head and the glass eyes from image_1."),
        ("unkept", SCENE + "The owl looks like the one in image_2. It preserves the round head and eyes of image_1."),
        ("unkept", SCENE + "The final image preserves everything from image_1 and image_2."),
        ("unkept", SCENE + "It does not preserve the round head of image_1, nor the engraved feathers of image_2."),
        ("unkept", "In a forest the owl of image_1 keeps walking towards the castle of image_2. " + SCENE),
        ("unknown", SCENE + KEPT + " The wings are those of image_3."),
        ("misnamed", SCENE + KEPT + " The wings come from the first image."),
        ("misnamed", SCENE + KEPT + " The wings come from the reference picture."),
        ("misnamed", SCENE + KEPT + " The wings come from Image 1."),
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
        ("order", "请将image_1中的铜枭放在左边。" + SCENE_ZH + KEPT_ZH),
        ("order", "把image_1中的铜枭放在石阶上。" + SCENE_ZH + KEPT_ZH),
        ("order", SCENE_ZH + "然后把灯笼移到右侧。" + KEPT_ZH),
        ("order", "生成一张图。" + SCENE_ZH + KEPT_ZH),
        ("order", SCENE_ZH + "背景中，添加一座喷泉。" + KEPT_ZH),
        ("order", SCENE_ZH + "确保画面清晰。" + KEPT_ZH),
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


@pytest.mark.parametrize(("language", "text"), [(each, text) for each in LANGUAGES for text in GOOD[each]])
def test_a_recaption_that_keeps_the_contract_has_no_fault(language, text):
    assert faults(text, language, 2, names=("Brass Owl of Zell", "泽尔铜枭")) == []


@pytest.mark.parametrize(("language", "kind", "text"), [(each, *case) for each in LANGUAGES for case in BAD[each]])
def test_what_breaks_it_is_called_by_its_name(language, kind, text):
    found = faults(text, language, 2, names=("Brass Owl of Zell", "泽尔铜枭"))
    assert kind in {each.kind for each in found}, found
