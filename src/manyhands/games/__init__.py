"""What is played: the games from which devices learn by acting."""

from manyhands.games.game import Game, Play
from manyhands.games.loading import load_game
from manyhands.games.section import GameSection

__all__ = ["Game", "GameSection", "Play", "load_game"]
