import jax, jax.numpy as jnp
from jax import lax
def packed_causal_attention(q,k,v,seg,pos):
    B,T,N,H=q.shape; K=k.shape[2]; q=q.reshape(B,T,K,N//K,H)*H**-.5
    s=jnp.einsum("btkgh,bskh->bkgts",q,k); m=(seg[:,:,None]==seg[:,None])&(pos[:,:,None]>=pos[:,None])&(seg[:,:,None]>0)
    p=jax.nn.softmax(jnp.where(m[:,None,None],s,-1e30)); return jnp.einsum("bkgts,bskh->btkgh",p,v).reshape(B,T,N,H)
def write_pages(pages, values, table, positions, valid):
    ps=pages.shape[1]; pg=jnp.take_along_axis(table, jnp.minimum(positions//ps, table.shape[1]-1), 1)
    pg=jnp.where(valid,pg,pages.shape[0]); return pages.at[pg,positions%ps].set(values,mode="drop")
def paged_attention(q,kp,vp,table,positions,*,pages_per_block):
    B,C,N,H=q.shape; ps,K=kp.shape[1],kp.shape[2]; W=pages_per_block; G=N//K
    table=jnp.pad(table,((0,0),(0,-table.shape[1]%W)))
    q=(q*H**-.5).reshape(B,C,K,G,H)
    def blk(j,c):
        m,l,a=c; ids=lax.dynamic_slice_in_dim(table,j*W,W,1)
        k=jnp.take(kp,ids,axis=0,mode="clip").reshape(B,W*ps,K,H); v=jnp.take(vp,ids,axis=0,mode="clip").reshape(B,W*ps,K,H)
        s=jnp.einsum("bckgh,btkh->bkgct",q,k); ok=(j*W*ps+jnp.arange(W*ps))[None,None]<=positions[...,None]
        s=jnp.where(ok[:,None,None],s,-1e30); m2=jnp.maximum(m,s.max(-1)); p=jnp.exp(s-m2[...,None]); al=jnp.exp(m-m2)
        return m2,l*al+p.sum(-1),a*al[...,None]+jnp.einsum("bkgct,btkh->bkgch",p,v)
    z=jnp.zeros((B,K,G,C)); n=(positions.max()+W*ps)//(W*ps)
    m,l,a=lax.fori_loop(0,n,blk,(z-1e30,z,jnp.zeros((B,K,G,C,H))))
    return (a/l[...,None]).transpose(0,3,1,2,4).reshape(B,C,N,H)
