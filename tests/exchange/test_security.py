from elephas_like.exchange.security import new_token, same_token


def test_tokens_are_long_and_never_the_same() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 43  # 256 bits in base 64


def test_a_token_equals_only_itself() -> None:
    assert same_token("secret", "secret")
    assert not same_token("secre", "secret")
    assert not same_token("", "secret")
    assert not same_token("sécret\udcff", "secret")
