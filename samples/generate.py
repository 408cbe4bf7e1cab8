"""Writes the sample rows beside this file: `python samples/generate.py`. The same rows every time."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent

# One country is enough for the reader; the reward asks for the form, not for geography.
CITIES = {
    "Argentina": "Buenos Aires, Córdoba, Mendoza, Rosario",
    "Australia": "Adelaide, Brisbane, Hobart, Melbourne, Perth, Sydney",
    "Austria": "Graz, Linz, Salzburg, Vienna",
    "Belgium": "Antwerp, Bruges, Brussels, Ghent",
    "Brazil": "Curitiba, Manaus, Recife, Rio de Janeiro, Salvador",
    "Canada": "Calgary, Halifax, Montreal, Ottawa, Toronto, Vancouver",
    "Chile": "Concepción, Santiago, Valparaíso",
    "China": "Beijing, Chengdu, Guangzhou, Shanghai, Xi'an",
    "Colombia": "Bogotá, Cali, Medellín",
    "Czechia": "Brno, Ostrava, Prague",
    "Denmark": "Aarhus, Copenhagen, Odense",
    "Egypt": "Alexandria, Cairo, Luxor",
    "Finland": "Helsinki, Oulu, Tampere, Turku",
    "France": "Bordeaux, Lille, Lyon, Marseille, Nantes, Nice, Paris, Strasbourg",
    "Germany": "Berlin, Bremen, Cologne, Dresden, Hamburg, Leipzig, Munich, Stuttgart",
    "Greece": "Athens, Patras, Thessaloniki",
    "Hungary": "Budapest, Debrecen, Szeged",
    "India": "Chennai, Delhi, Jaipur, Kolkata, Mumbai, Pune",
    "Indonesia": "Bandung, Jakarta, Surabaya",
    "Ireland": "Cork, Dublin, Galway",
    "Italy": "Bologna, Florence, Genoa, Milan, Naples, Rome, Turin, Venice",
    "Japan": "Fukuoka, Kyoto, Nagoya, Osaka, Sapporo, Tokyo",
    "Kenya": "Kisumu, Mombasa, Nairobi",
    "Mexico": "Guadalajara, Mérida, Monterrey, Oaxaca, Puebla",
    "Morocco": "Casablanca, Fez, Marrakesh, Rabat",
    "Netherlands": "Amsterdam, Eindhoven, Rotterdam, Utrecht",
    "New Zealand": "Auckland, Christchurch, Wellington",
    "Norway": "Bergen, Oslo, Trondheim",
    "Peru": "Arequipa, Cusco, Lima",
    "Poland": "Gdańsk, Kraków, Poznań, Warsaw, Wrocław",
    "Portugal": "Braga, Coimbra, Lisbon, Porto",
    "South Korea": "Busan, Daegu, Incheon, Seoul",
    "Spain": "Barcelona, Bilbao, Madrid, Seville, Valencia, Zaragoza",
    "Sweden": "Gothenburg, Malmö, Stockholm, Uppsala",
    "Switzerland": "Basel, Bern, Geneva, Lausanne, Zurich",
    "Turkey": "Ankara, Antalya, Bursa, Istanbul, Izmir",
    "United Kingdom": "Belfast, Bristol, Cardiff, Edinburgh, Glasgow, Leeds, Liverpool, London, Manchester",
    "Vietnam": "Da Nang, Hanoi, Hue",
}

WORDS = {"plus": lambda a, b: a + b, "minus": lambda a, b: a - b, "times": lambda a, b: a * b}


def arithmetic() -> list[dict[str, str]]:
    """The page's own row first, then 80 of each operation; no two alike, results never negative."""
    rows = [{"prompt": "What is 9 plus 2? Reply with the number only.", "answer": "11"}]
    for word, apply in WORDS.items():
        if word == "times":
            pairs = [(a, b) for a in range(2, 12) for b in range(2, 12)]
        else:
            pairs = [(a, b) for a in range(2, 41) for b in range(2, 41, 3) if word == "plus" or a >= b]
        for k in range(80):
            a, b = pairs[k * len(pairs) // 80]
            row = {"prompt": f"What is {a} {word} {b}? Reply with the number only.", "answer": str(apply(a, b))}
            if row not in rows:
                rows.append(row)
    return rows


def places() -> list[dict[str, str]]:
    """One row a city."""
    return [
        {
            "prompt": f'Write a JSON object with the keys "city" and "country" for {city}. Reply with JSON only.',
            "city": city,
            "country": country,
        }
        for country, cities in CITIES.items()
        for city in cities.split(", ")
    ]


def write(name: str, rows: list[dict[str, str]]) -> None:
    """JSON lines, with text as it is read."""
    with (HERE / name).open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write("llm_grpo.jsonl", arithmetic())
    write("quickstart.jsonl", places())
