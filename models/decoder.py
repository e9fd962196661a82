import dataclasses, jax, jax.numpy as jnp
from jax import lax
Params = dict
@dataclasses.dataclass(frozen=True)
class TensorShard:
    axis: str
    def reduce(self, x): return lax.psum(x, self.axis)
def init_params(c, key):
    ks = iter(jax.random.split(key, 20)); L=c.num_layers; D=c.d_model
    w=lambda *s, fan: jax.random.normal(next(ks), s)*fan**-.5
    layers=dict(attn_norm=jnp.ones((L,D)), mlp_norm=jnp.ones((L,D)), wq=w(L,D,c.num_heads,c.head_dim,fan=D), wk=w(L,D,c.num_kv_heads,c.head_dim,fan=D), wv=w(L,D,c.num_kv_heads,c.head_dim,fan=D), wo=w(L,c.num_heads,c.head_dim,D,fan=D*4), wg=w(L,D,c.d_ff,fan=D), wu=w(L,D,c.d_ff,fan=D), wd=w(L,c.d_ff,D,fan=c.d_ff*4), q_norm=jnp.ones((L,c.head_dim)), k_norm=jnp.ones((L,c.head_dim)))
    return dict(embed=w(c.vocab_size,D,fan=D), layers=layers, final_norm=jnp.ones(D))
def param_axes(c):
    layers=dict(attn_norm=("layers","embed"), mlp_norm=("layers","embed"), wq=("layers","embed","heads","head_dim"), wk=("layers","embed","kv_heads","head_dim"), wv=("layers","embed","kv_heads","head_dim"), wo=("layers","heads","head_dim","embed"), wg=("layers","embed","mlp"), wu=("layers","embed","mlp"), wd=("layers","mlp","embed"), q_norm=("layers","head_dim"), k_norm=("layers","head_dim"))
    return dict(embed=("vocab","embed"), layers=layers, final_norm=("embed",))
def unstack_layers(p):
    n=jax.tree.leaves(p["layers"])[0].shape[0]
    return dict(p, layers=[jax.tree.map(lambda a:a[l], p["layers"]) for l in range(n)])
def rms(x,w,eps): return x*lax.rsqrt((x*x).mean(-1,keepdims=True)+eps)*w
def rope(x,pos,theta):
    h=x.shape[-1]//2; f=theta**(-jnp.arange(h)/h); a=pos[...,None,None]*f; s,c=jnp.sin(a),jnp.cos(a)
    x1,x2=x[...,:h],x[...,h:]; return jnp.concatenate([x1*c-x2*s,x2*c+x1*s],-1)
def hidden_states(params, tokens, positions, *, config, attend, state=None, shard=None, remat=False):
    reduce = shard.reduce if shard else (lambda x:x)
    E=params["embed"]
    if shard:
        off=lax.axis_index(shard.axis)*E.shape[0]; i=tokens-off; ok=(i>=0)&(i<E.shape[0])
        x=reduce(jnp.where(ok[...,None],E[jnp.clip(i,0,E.shape[0]-1)],0))
    else: x=E[tokens]
    def block(x,state,p,l):
        h=rms(x,p["attn_norm"],config.norm_eps)
        q,k,v=[jnp.einsum("btd,dnh->btnh",h,p[w]) for w in ("wq","wk","wv")]
        q=rope(rms(q,p["q_norm"],config.norm_eps),positions,config.rope_theta); k=rope(rms(k,p["k_norm"],config.norm_eps),positions,config.rope_theta)
        o,state=attend(q,k,v,l,state)
        x=x+reduce(jnp.einsum("btnh,nhd->btd",o,p["wo"]))
        h=rms(x,p["mlp_norm"],config.norm_eps)
        return x+reduce((jax.nn.silu(h@p["wg"])*(h@p["wu"]))@p["wd"]), state
    if isinstance(params["layers"],list):
        for l,p in enumerate(params["layers"]): x,state=block(x,state,p,l)
    else:
        def body(c,lp): return block(*c,lp[1],lp[0]),None
        (x,state),_=lax.scan(body,(x,state),(jnp.arange(config.num_layers),params["layers"]))
    return rms(x,params["final_norm"],config.norm_eps), state
def logits(params, hidden, *, config): return hidden@params["embed"].T
