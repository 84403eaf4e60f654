"""Each byte as the Latin-1 character of its number: spaces and line feeds stay invisible, and no real vocabulary is spelled so.

caught by: TestTask1Alphabet::test_every_byte_has_one_character
"""


def byte_of_character() -> dict[str, int]:
    return {chr(byte): byte for byte in range(256)}
