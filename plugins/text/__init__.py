"""The text edge of every gateway and the library: prompts -> ids off the loop, ids -> text per step, stop strings.

``edge`` holds the requests, ``stream`` one request's text, ``tokenizer`` the model's side of it.
"""
