"""Tasks in ten languages other than English: questions, translations from English, and requests for short stories."""

# ruff: noqa: RUF001 -- letters of other alphabets are meant
from typing import NamedTuple


class Tasks(NamedTuple):
    """Texts of one language; each of the first four has one gap. texts: English ones to translate."""

    explain: str
    topics: tuple[str, ...]
    translate: str
    texts: tuple[str, ...]
    story: str
    heroes: tuple[str, ...]
    questions: tuple[str, ...]


LANGUAGES = {
    "German": Tasks(
        "Erkläre in einfachen Worten, wie {} funktioniert.",
        ("ein Kühlschrank", "eine Bibliothek", "die Photosynthese"),
        "Übersetze diesen Satz ins Deutsche und erläutere danach seine Grammatik: „{}“",
        ("The train to Munich leaves at half past seven.", "If I had more time, I would learn the violin."),
        "Schreibe eine kurze Geschichte über {}, die in Hamburg spielt.",
        ("einen vergesslichen Kapitän", "eine Bäckerin und ihren sprechenden Ofen"),
        (
            "Welche Vorteile hat es, mit dem Fahrrad zur Arbeit zu fahren? Nenne fünf.",
            "Was ist der Unterschied zwischen Wetter und Klima?",
            "Gib mir einen Wochenplan für jemanden, der Spanisch lernen will.",
        ),
    ),
    "French": Tasks(
        "Peux-tu m'expliquer {} comme si j'avais dix ans ?",
        ("la gravité", "la Révolution française", "le cycle de l'eau"),
        "Comment dit-on en français : « {} » ? Donne deux versions, une familière et une soutenue.",
        ("Could you please close the window?", "My grandmother bakes the best apple pie in the village."),
        "Raconte-moi une petite histoire dont le personnage principal est {}.",
        ("un facteur qui a peur des chiens", "une étoile tombée dans un jardin"),
        (
            "Quels sont les avantages et les inconvénients de la vie à la campagne ?",
            "Donne la recette d'une soupe à l'oignon pour quatre personnes.",
            "Pourquoi le ciel est-il bleu pendant la journée et rouge le soir ?",
        ),
    ),
    "Spanish": Tasks(
        "Escribe un párrafo sobre {} para una enciclopedia escolar.",
        ("los volcanes", "Miguel de Cervantes", "la selva amazónica"),
        "Traduce al español y después haz una pregunta sobre la frase: «{}»",
        (
            "Yesterday we visited the museum of modern art.",
            "The children were walking through the park when it began to rain.",
        ),
        "Inventa un cuento breve en el que {} aprende una lección.",
        ("un zorro orgulloso", "una niña que colecciona sombras"),
        (
            "¿Qué consejos le darías a una persona que busca su primer empleo?",
            "¿Cuál es la diferencia entre los verbos «ser» y «estar»? Da ejemplos.",
            "Enumera los planetas del sistema solar y un dato curioso de cada uno.",
        ),
    ),
    "Italian": Tasks(
        "Descrivi {} a un turista che non l'ha mai visto.",
        ("il Colosseo", "il mercato di Palermo", "un tipico caffè di Torino"),
        "Traduci in italiano la frase seguente, poi riscrivila al passato: «{}»",
        ("She speaks four languages and sings in a choir.", "We cook dinner together every Sunday."),
        "C'era una volta {}: continua la fiaba in circa dieci frasi.",
        ("un gatto che sapeva leggere", "una principessa stanca dei balli"),
        (
            "Come si prepara una buona pizza margherita in casa?",
            "Perché le foglie cambiano colore in autunno?",
            "Scrivi una lettera formale per chiedere informazioni su un corso di nuoto.",
        ),
    ),
    "Portuguese": Tasks(
        "O que você sabe sobre {}? Responda em três parágrafos.",
        ("a história do samba", "o rio São Francisco", "a chegada do homem à Lua"),
        'Passe para o português do Brasil: "{}" Explique também as palavras difíceis.',
        ("The meeting was postponed because of the storm.", "He forgot his umbrella on the bus again."),
        "Crie uma história curta sobre {} em uma pequena cidade do interior.",
        ("um relojoeiro misterioso", "dois irmãos e um mapa antigo"),
        (
            "Quais alimentos são ricos em ferro e como posso incluí-los na dieta?",
            "Escreva um poema de oito versos sobre o mar.",
            "Como funciona o sistema de votação em uma democracia?",
        ),
    ),
    "Dutch": Tasks(
        "Wat is {} en waarom is het belangrijk?",
        ("een dijk", "de stikstofkringloop", "vrijheid van meningsuiting"),
        "Vertaal naar het Nederlands: '{}' Geef daarna drie woorden die erop rijmen of erop lijken.",
        ("The baker opens his shop before sunrise.", "Nobody knew where the key had gone."),
        "Verzin een verhaaltje voor het slapengaan over {}.",
        ("een egel met winterslaapproblemen", "een meisje dat op de maan woont"),
        (
            "Hoe kan ik in de winter energie besparen in een oud huis?",
            "Beschrijf een dag uit het leven van een boer in Friesland.",
            "Noem de belangrijkste gebeurtenissen van de zeventiende eeuw in Nederland.",
        ),
    ),
    "Polish": Tasks(
        "Napisz krótką notatkę na temat: {}.",
        ("Mikołaj Kopernik", "pszczoły i zapylanie roślin", "historia Krakowa"),
        "Przetłumacz zdanie na język polski i podaj jego przeczenie: „{}”",
        ("My brother works in a hospital near the river.", "Every winter we go skiing in the mountains."),
        "Opowiedz bajkę, w której {} ratuje cały las.",
        ("mała wiewiórka", "stary i głuchy niedźwiedź"),
        (
            "Jak przygotować się do egzaminu, gdy zostały tylko trzy dni?",
            "Dlaczego zimą dni są krótsze niż latem?",
            "Podaj przepis na pierogi z kapustą i grzybami.",
        ),
    ),
    "Russian": Tasks(
        "Коротко объясни школьнику, что такое {}.",
        ("инфляция", "чёрная дыра", "фотосинтез"),
        "Переведи на русский язык: «{}» Затем составь с этими словами новое предложение.",
        ("The old bridge was closed for repairs.", "I would like a cup of tea without sugar."),
        "Сочини короткий рассказ, героем которого будет {}.",
        ("смотритель маяка", "кот, живущий в библиотеке"),
        (
            "Какие книги ты посоветуешь прочитать летом и почему?",
            "Чем отличается Москва от Санкт-Петербурга?",
            "Как вырастить помидоры на балконе? Опиши по шагам.",
        ),
    ),
    "Turkish": Tasks(
        "{} hakkında kısa ve anlaşılır bir yazı yaz.",
        ("İstanbul Boğazı", "Yenilenebilir enerji", "Satranç oyununun kuralları"),
        'Şu cümleyi Türkçeye çevir ve hangi zamanda olduğunu söyle: "{}"',
        ("We will meet our friends in front of the cinema.", "The cat slept on the warm roof all day."),
        "Bana {} hakkında mutlu sonla biten bir masal anlat.",
        ("yaramaz bir keloğlan", "denizi hiç görmemiş bir balıkçı"),
        (
            "Sağlıklı bir kahvaltıda neler olmalı?",
            "Deprem sırasında ne yapmalıyız? Maddeler halinde yaz.",
            "Yeni bir şehre taşınmanın zorlukları nelerdir?",
        ),
    ),
    "Chinese": Tasks(
        "请用简单的语言介绍一下{}。",
        ("长城的历史", "人工智能", "中国的春节"),
        "把下面的句子翻译成中文，并解释其中的语法：“{}”",
        ("Learning a language takes patience.", "The library is next to the post office."),
        "请写一个关于{}的小故事，不超过三百字。",
        ("一只想飞的乌龟", "雨天里的老书店"),
        (
            "怎样才能养成早睡早起的习惯？",
            "请列出五种常见的水果，并说明它们的营养价值。",
            "为什么海水是咸的？",
        ),
    ),
}


def languages() -> list[tuple[str, str]]:
    """Return a language and a task for each prompt; the languages take turns."""
    every = []
    for language, of in LANGUAGES.items():
        tasks = [
            *(of.explain.format(topic) for topic in of.topics),
            *(of.translate.format(text) for text in of.texts),
            *(of.story.format(hero) for hero in of.heroes),
            *of.questions,
        ]
        every.append([(language, tasks[number]) for number in (0, 3, 5, 7, 1, 8, 4, 6, 9, 2)])  # kinds take turns, too
    return [task for turn in zip(*every, strict=True) for task in turn]
