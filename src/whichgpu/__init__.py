"""whichgpu: which GPU can train this model, how big a batch fits, and what does it cost?"""
