import jax
from jax.sharding import PartitionSpec as P, NamedSharding
SAMPLER_RULES = {"vocab":"tensor","embed":None,"heads":"tensor","kv_heads":"tensor","head_dim":None,"mlp":"tensor","layers":None}
def specs(tree, rules): return jax.tree.map(lambda a: P(*[rules[x] for x in a]), tree, is_leaf=lambda x:isinstance(x,tuple))
def shardings(tree, mesh, rules): return jax.tree.map(lambda a: NamedSharding(mesh,P(*[rules[x] for x in a])), tree, is_leaf=lambda x:isinstance(x,tuple))
LEARNER_RULES = dict(SAMPLER_RULES, embed="fsdp")
