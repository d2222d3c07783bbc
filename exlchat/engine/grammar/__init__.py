"""What an answer has to match, turned into which tokens may come next. The grammar library is imported when used."""

from exlchat.engine.grammar.matcher import GrammarMatcher, check_constraint
from exlchat.engine.grammar.source import constraint_notice
from exlchat.engine.grammar.vocabulary import GrammarVocabulary
from exlchat.llm.constraint import ConstraintError

__all__ = ["ConstraintError", "GrammarMatcher", "GrammarVocabulary", "check_constraint", "constraint_notice"]
