"""``farmctl doctor``: what is wrong in the store, why it matters, and what to do about it.

``survey.py`` reads everything once; each check is a pure function of that survey in its own file (only
``consul.py`` asks the servers); ``examine.py`` runs them all. Nothing is changed unless a person names it;
``fixes.py`` then writes audited transactions that check once more.
"""
