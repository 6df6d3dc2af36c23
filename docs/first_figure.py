"""Write the first figure of README and site in both languages; Chinese needs an installed font with its glyphs."""

from pathlib import Path

from posenc import ALiBi, NoPE, RoPE, figures, languages

HERE = Path(__file__).parent / "_static"


def main() -> None:
    """Draw the mean score by distance of three encodings, of the head whose slope of ALiBi is 1/16."""
    for language, name in (("en", "profile.svg"), ("zh", "profile.zh_CN.svg")):
        with languages.use(language):
            figures.profile(RoPE(head_dim=64), ALiBi(n_heads=8), NoPE(), head=3).savefig(HERE / name)


if __name__ == "__main__":
    main()
