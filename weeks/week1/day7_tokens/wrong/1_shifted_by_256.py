"""U+0100 + byte for what does not print: right for the space, by chance, and wrong from 0x7F on.

caught by: TestTask1Alphabet::test_the_others_follow_in_order
"""


def byte_of_character() -> dict[str, int]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return {chr(byte if byte in printable else 0x100 + byte): byte for byte in range(256)}
